"""Commands that talk to a model: a signature, help with examples, one call each."""

from pathlib import Path
from typing import Annotated

import typer

from llmlab.cli import app, run
from llmlab.options import (
    Api,
    ApiChoice,
    Budget,
    Db,
    Experiment,
    Host,
    Json,
    KeepAlive,
    KeepText,
    ModelName,
    ModelNames,
    ModelOptions,
    NumCtx,
    NumPredict,
    OnOverflow,
    Overflowing,
    PairedOptions,
    ReportFormat,
    Reserve,
    ResumableCommand,
    System,
    Tag,
    Think,
    Timeout,
    model_options,
    repeat_number,
    whole_numbers,
)


@app.command(cls=PairedOptions)
def chat(
    question: Annotated[str | None, typer.Argument(help="One question; without it a conversation.")] = None,
    model: ModelName = None,
    system: System = None,
    option: ModelOptions = None,
    num_ctx: NumCtx = None,
    num_predict: NumPredict = None,
    budget: Budget = True,
    on_overflow: Overflowing = OnOverflow.drop,
    reserve: Reserve = None,
    think: Think = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of standard input is a turn.")] = False,
    as_json: Json = False,
    tag: Tag = None,
    keep_text: KeepText = False,
    keep_alive: KeepAlive = None,
    host: Host = None,
    api: ApiChoice = Api.auto,
    timeout: Timeout = 600.0,
    db: Db = None,
) -> None:
    """Talk to a model.

    Every answer ends with three numbers: prompt tokens read, time to first token, tokens per second.

    Examples:

      llmlab chat

      llmlab chat "What is a KV cache?"

      git diff | llmlab chat "Write a commit message" -m qwen2.5:3b

      llmlab chat --no-budget --num-ctx 512
    """
    from llmlab.chat import ChatSettings
    from llmlab.chat import chat as run_chat
    from llmlab.settings import parse_keep_alive
    from llmlab.target import Choice

    settings = ChatSettings(
        choice=Choice(host, api.value, model, timeout, num_ctx),
        db=db,
        tag=tag,
        system=system,
        num_ctx=num_ctx,
        num_predict=num_predict,
        options=model_options(option),
        think=think,
        keep_alive=parse_keep_alive(keep_alive),
        keep_text=keep_text,
        budget=budget,
        on_overflow=on_overflow.value,
        reserve=reserve,
        as_json=as_json,
        lines=lines,
        question=question,
    )
    raise typer.Exit(run(run_chat(settings)))


@app.command(cls=PairedOptions)
def serve(
    bind: Annotated[str, typer.Option("--bind", metavar="ADDRESS", help="Elsewhere needs LLMLAB_SERVE_KEY.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    model: ModelName = None,
    system: System = None,
    option: ModelOptions = None,
    num_ctx: NumCtx = None,
    num_predict: NumPredict = None,
    budget: Annotated[
        bool | None,
        typer.Option("--budget/--no-budget", help="Fit other clients' conversations too, or none at all."),
    ] = None,
    on_overflow: Overflowing = OnOverflow.drop,
    reserve: Reserve = None,
    think: Think = None,
    max_parallel: Annotated[int, typer.Option("--max-parallel", min=1, metavar="N", help="Calls at once.")] = 512,
    max_queue: Annotated[int, typer.Option("--max-queue", min=0, metavar="N", help="Calls that may wait.")] = 512,
    max_body: Annotated[int, typer.Option("--max-body", min=1, metavar="MB", help="Largest request.")] = 8,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", metavar="NAME", help="A further name this server goes by.")
    ] = None,
    origin: Annotated[
        list[str] | None, typer.Option("--origin", metavar="URL", help="A further web origin that may ask.")
    ] = None,
    tag: Tag = None,
    keep_text: KeepText = False,
    keep_alive: KeepAlive = None,
    host: Host = None,
    api: ApiChoice = Api.auto,
    timeout: Timeout = 600.0,
    db: Db = None,
) -> None:
    """Serve the model: an API, a page, proxies.

    A streaming API with stats at /chat, recording proxies for clients of Ollama and OpenAI, a page at /.

    Examples:

      llmlab serve

      curl -N localhost:8000/chat -H 'content-type: application/json' -d '{"message": "What is a KV cache?"}'

      OLLAMA_HOST=127.0.0.1:8000 ollama run qwen2.5:3b
    """
    from llmlab.serve import ServeSettings
    from llmlab.serve import serve as run_serve
    from llmlab.settings import parse_keep_alive
    from llmlab.target import Choice

    settings = ServeSettings(
        choice=Choice(host, api.value, model, timeout, num_ctx),
        bind=bind,
        port=port,
        db=db,
        tag=tag,
        system=system,
        num_ctx=num_ctx,
        num_predict=num_predict,
        options=model_options(option),
        think=think,
        keep_alive=parse_keep_alive(keep_alive),
        keep_text=keep_text,
        budget=budget,
        on_overflow=on_overflow.value,
        reserve=reserve,
        allow_hosts=tuple(allow_host or ()),
        origins=tuple(origin or ()),
        max_parallel=max_parallel,
        max_queue=max_queue,
        max_body_bytes=max_body * 1024 * 1024,
    )
    raise typer.Exit(run(run_serve(settings)))


@app.command(cls=ResumableCommand)
def bench(
    experiments: Annotated[
        list[Experiment] | None, typer.Argument(metavar="[EXPERIMENT]...", help="Which to run. Default: all four.")
    ] = None,
    tag: Tag = None,
    model: ModelNames = None,
    num_ctx: NumCtx = None,
    sizes: Annotated[str | None, typer.Option("--sizes", metavar="N,N", help="Prompt tokens. [100,1000,3000]")] = None,
    users: Annotated[str | None, typer.Option("--users", metavar="N,N", help="Users at once. [1,2,4,8]")] = None,
    turns: Annotated[str | None, typer.Option("--turns", metavar="N,N", help="Long turns. [2,6,12]")] = None,
    repeat: Annotated[
        str, typer.Option("--repeat", metavar="auto|N", help="Samples a cell; auto: 5, or what 30 s allow.")
    ] = "auto",
    num_predict: NumPredict = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller window and smaller everything.")] = False,
    cooldown: Annotated[
        float, typer.Option("--cooldown", min=0, metavar="S", help="Seconds of rest before each measured call.")
    ] = 0.0,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="[RUN]", help="Finish a run that was stopped; alone, the newest.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the model's sampling and of the texts.")] = 42,
    form: Annotated[
        ReportFormat, typer.Option("--format", help="table as it goes; the others when the run is complete.")
    ] = ReportFormat.table,
    keep_text: KeepText = False,
    host: Host = None,
    api: ApiChoice = Api.auto,
    timeout: Timeout = 600.0,
    db: Db = None,
) -> None:
    """Measure this machine in four experiments.

    Prompt length, the same prompt twice, several users, overflow; every call is a row of the database.

    Examples:

      llmlab bench --tag laptop

      llmlab bench --quick users -m qwen2.5:3b -m llama3.2:3b

      llmlab bench --resume
    """
    from llmlab.bench import BenchOptions
    from llmlab.bench.command import QUICK_NUM_CTX, BenchSettings
    from llmlab.bench.command import bench as run_bench
    from llmlab.target import Choice

    options = BenchOptions(
        tag=tag,
        experiments=tuple(e.value for e in experiments or []),
        num_ctx=num_ctx,
        sizes=whole_numbers("--sizes", sizes),
        users=whole_numbers("--users", users),
        turns=whole_numbers("--turns", turns),
        repeat=repeat_number(repeat),
        num_predict=num_predict,
        quick=quick,
        cooldown_s=cooldown,
        seed=seed,
        keep_text=keep_text,
    )
    choice = Choice(
        host, api.value, model[0] if model else None, timeout, num_ctx or (QUICK_NUM_CTX if quick else None)
    )
    settings = BenchSettings(choice=choice, options=options, models=model or (), db=db, resume=resume, form=form.value)
    raise typer.Exit(run(run_bench(settings)))


@app.command()
def report(
    which: Annotated[
        list[str] | None, typer.Argument(metavar="TAG|RUN", help="Tags or run ids. Default: the two newest bench runs.")
    ] = None,
    form: Annotated[
        ReportFormat, typer.Option("--format", help="md pastes into an issue; csv and json have raw values.")
    ] = ReportFormat.table,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Write to a file.")] = None,
    fail_on_regression: Annotated[
        float | None,
        typer.Option("--fail-on-regression", min=0, metavar="PCT", help="Exit 1 where the second run is worse by PCT."),
    ] = None,
    db: Db = None,
) -> None:
    """Compare bench runs, also across machines.

    First what differs, then the two-run tables, the shape of each series, and what to expect of a longer prompt.

    A tag means its newest run; one tag alone, or the same twice, its two newest.

    Examples:

      llmlab report laptop desktop

      llmlab report --format md laptop

      llmlab report laptop --fail-on-regression 10
    """
    from llmlab.report import report as write_report
    from llmlab.settings import database_path
    from llmlab.store import Store

    with Store.read(database_path(db)) as store:
        code = write_report(store, which or [], format=form.value, output=output, fail_on_regression=fail_on_regression)
    raise typer.Exit(code)


@app.command()
def engine(
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = 11434,
    gguf: Annotated[
        Path | None, typer.Option("--gguf", metavar="FILE", help="A GGUF file, also one that Ollama pulled.")
    ] = None,
    num_parallel: Annotated[int, typer.Option("--num-parallel", min=1, metavar="N", help="Answers at once.")] = 4,
    max_queue: Annotated[int, typer.Option("--max-queue", min=0, metavar="N", help="Requests that may wait.")] = 512,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, metavar="N", help="Threads. Default: the physical cores.")
    ] = None,
) -> None:
    """Run the embedded engine by itself.

    Other programs find Ollama's API there, with no Ollama installed.

    Examples:

      llmlab engine

      llmlab engine --gguf qwen2.5-3b-instruct-q4_k_m.gguf --num-parallel 2
    """
    from llmlab.engine import run_engine

    run_engine(host=host, port=port, gguf=gguf, num_parallel=num_parallel, max_queue=max_queue, threads=threads)


@app.command()
def doctor(
    selftest: Annotated[
        bool, typer.Option("--selftest", help="Measure a fake server of known speed and compare with the truth.")
    ] = False,
    model: ModelName = None,
    host: Host = None,
    api: ApiChoice = Api.auto,
    db: Db = None,
) -> None:
    """Say whether this machine is fit to measure.

    Server, model, window, GPU, power, load, memory, clock and database; exit 1 where figures would suffer.
    """
    if selftest:
        from llmlab.selftest import selftest as run_selftest

        raise typer.Exit(run(run_selftest()))
    from llmlab.doctor import doctor as run_doctor
    from llmlab.target import Choice

    raise typer.Exit(run(run_doctor(Choice(host, api.value, model), db)))

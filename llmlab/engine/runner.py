"""A runner: one worker process as the front sees it."""

import asyncio
import json
import re
import secrets
import tempfile
from asyncio.subprocess import PIPE, Process
from typing import IO, Any
from urllib.parse import urlsplit

from llmlab.engine.child import command, detached
from llmlab.engine.link import Broken, Link, Refused
from llmlab.engine.worker import Plan
from llmlab.errors import EngineError, one_line


class Runner:
    """A loaded model: `n_ctx` tokens in each of its slots, `gpu` whether it may sit in a GPU's memory.

    `broken` is set once it has let a request down.
    """

    def __init__(self, process: Process, errors: IO[bytes], link: Link, plan: Plan, *, gpu: bool) -> None:
        self.process = process
        self.errors = errors
        self.link = link
        self.plan = plan
        self.gpu = gpu
        self.n_ctx = plan.n_ctx
        self.slots = asyncio.Semaphore(plan.slots)
        self.broken = False

    @classmethod
    async def start(cls, *, gguf: str, n_ctx: int, slots: int, threads: int | None, template: str | None) -> "Runner":
        """Start a worker and wait until its model is loaded; EngineError says in one line why it cannot be."""
        plan = Plan(gguf=gguf, n_ctx=n_ctx, slots=slots, key=secrets.token_hex(16), threads=threads, template=template)
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        process = await asyncio.create_subprocess_exec(
            *command("worker"), stdin=PIPE, stdout=PIPE, stderr=errors, **detached()
        )
        try:
            assert process.stdin and process.stdout
            process.stdin.write(plan.line())
            answer = json.loads(await process.stdout.readline() or b"{}")
            if "address" not in answer:
                raise failure(gguf, await process.wait(), answer, errors)
            address = urlsplit(answer["address"])
            link = Link(str(address.hostname), int(address.port or 0), plan.key)
            runner = cls(process, errors, link, plan, gpu=bool(answer["gpu"]))
            runner.n_ctx = (await link.ask("/props"))["default_generation_settings"]["n_ctx"]
        except (Broken, Refused) as error:
            kill(process)
            raise failure(gguf, await process.wait(), {}, errors) from error
        except BaseException:
            kill(process)
            errors.close()
            raise
        return runner

    @property
    def alive(self) -> bool:
        return not self.broken and self.process.returncode is None

    async def stop(self) -> None:
        """End the worker, by a signal: llama.cpp's own shutdown can hang."""
        kill(self.process)
        await self.process.wait()
        self.errors.close()


def kill(process: Process) -> None:
    if process.returncode is None:
        process.kill()


def failure(gguf: str, code: int, answer: dict[str, Any], errors: IO[bytes]) -> EngineError:
    """Why a worker ended before it had loaded its model."""
    if answer.get("loaded") is False:
        return EngineError(
            f"llama.cpp cannot be used here: {answer['error']}",
            "Install the library it names (libgomp.so.1: apt install libgomp1)",
        )
    reason = cause(errors) or f"the process ended with {code}, perhaps for want of memory"
    return EngineError(f"cannot load {gguf}: {reason}", "Give another model file with --gguf FILE, or a smaller window")


def cause(errors: IO[bytes]) -> str:
    """The first reason llama.cpp gives, without its time stamp and function; empty where it gives none."""
    errors.seek(0)
    lines = errors.read().decode("utf-8", "replace").splitlines()
    said = [re.sub(r"^[\d.]+ E ", "", line).strip() for line in lines]
    first = next((line for line in said if line), "")
    return one_line(re.sub(r"^(\w+\s+)?\w+: (error loading model: )?", "", first), 200)

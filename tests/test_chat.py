"""`llmlab chat` through the command line, against a fake server of known speed."""

import json

import pytest

from llmlab.fake import FakeServer, Figures

QUICK = {"decode_gap_ns": 500_000, "prefill_tokens_per_s": 1_000_000.0}


def test_one_question_is_answered_on_stdout_and_measured_on_stderr(lab, fake, rows):
    result = lab("chat", "What is a KV cache?", "--host", fake.url, "-n", "12")
    assert result.exit_code == 0
    assert result.stdout.strip()
    assert "prompt tokens · " in result.stderr
    assert "to first token · " in result.stderr
    assert "stopped at -n 12" in result.stderr
    (call,) = rows("select * from calls")
    assert call["outcome"] == "ok"
    assert call["output_tokens"] == 12
    assert call["num_ctx"] == 4096
    assert call["prompt_tokens"] > 0
    assert call["ttft_ns"] > 0
    (run,) = rows("select * from runs")
    assert (run["command"], run["outcome"], run["num_ctx"]) == ("chat", "ok", 4096)
    assert run["finished_utc"] >= run["started_utc"]


def test_piped_input_is_one_message_and_lines_are_turns(lab, fake, rows):
    assert lab("chat", "--host", fake.url, "-n", "8", stdin="one\ntwo\n").exit_code == 0
    assert lab("chat", "--host", fake.url, "-n", "8", "--lines", stdin="one\n\ntwo\n").exit_code == 0
    sent = [row["messages_sent"] for row in rows("select messages_sent from calls order by started_utc")]
    assert sent == [1, 1, 3]


def test_piped_input_goes_in_front_of_the_question(lab, fake):
    result = lab("chat", "What does it say?", "--host", fake.url, "-n", "8", "--json", stdin="a file\n")
    assert json.loads(result.stdout)["call"]["prompt_chars"] == len("a file\n\nWhat does it say?")


def test_json_has_the_answer_and_the_whole_call(lab, fake):
    result = lab("chat", "hi", "--host", fake.url, "-n", "8", "--json")
    turn = json.loads(result.stdout)
    assert turn["answer"]
    assert turn["call"]["outcome"] == "ok"
    assert turn["dropped"] == 0
    assert "prompt tokens" not in result.stderr


def test_nothing_to_say_is_a_usage_error(lab, fake):
    result = lab("chat", "--host", fake.url, stdin=" \n")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "standard input is empty" in result.stderr


def test_text_is_stored_only_when_asked(lab, fake, rows):
    lab("chat", "my secret", "--host", fake.url, "-n", "8")
    assert rows("select * from texts") == []
    lab("chat", "my secret", "--host", fake.url, "-n", "8", "--keep-text")
    (text,) = rows("select * from texts")
    assert json.loads(text["prompt_json"]) == [{"role": "user", "content": "my secret"}]
    assert text["answer"]


def test_model_options_and_system_prompt_are_sent(lab, fake, rows):
    options = ("-n", "8", "-s", "Be brief.", "-o", "temperature", "0", "-o", "seed=7")
    lab("chat", "hi", "--host", fake.url, "--keep-text", *options)
    (text,) = rows("select prompt_json from texts")
    assert json.loads(text["prompt_json"])[0] == {"role": "system", "content": "Be brief."}
    (run,) = rows("select options_json from runs")
    assert json.loads(run["options_json"]) == {"temperature": 0, "seed": 7}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("-o", "temperature"), "has no value"),
        (("-o", "num_ctx", "100"), "Use --num-ctx 100"),
        (("--keep-alive", "abc"), "keep"),
        (("--host", "http://x:99999999"), "port"),
    ],
)
def test_bad_options_are_one_line_and_exit_2(lab, args, words):
    result = lab("chat", "hi", *args)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_no_server_names_the_address_and_both_ways_out(lab):
    result = lab("chat", "hi", "--host", "127.0.0.1:9")
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1
    assert "http://127.0.0.1:9" in result.stderr
    assert "ollama serve" in result.stderr
    assert "llmlab[engine]" in result.stderr


def test_unknown_model_names_the_models_there_are(lab, fake):
    result = lab("chat", "hi", "--host", fake.url, "-m", "nosuch:1b")
    assert result.exit_code == 4
    assert "nosuch:1b" in result.stderr
    assert fake.model in result.stderr


@pytest.mark.parametrize(
    ("fault", "outcome"), [("die", "incomplete"), ("error_line", "error"), ("no_done", "incomplete")]
)
def test_an_answer_that_breaks_off_is_an_error_with_its_row(lab, rows, fault, outcome):
    with FakeServer(Figures(**QUICK, fault=fault)) as fake:
        result = lab("chat", "hi", "--host", fake.url)
    assert result.exit_code == 4
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in result.stderr
    (call,) = rows("select outcome, error, http_status from calls")
    assert call["outcome"] == outcome
    (run,) = rows("select outcome from runs")
    assert run["outcome"] == "failed"


def test_silence_ends_with_how_long_it_lasted(lab, rows):
    with FakeServer(Figures(**QUICK, fault="hang")) as fake:
        result = lab("chat", "hi", "--host", fake.url, "--timeout", "0.2")
    assert result.exit_code == 4
    assert "0.2 s" in result.stderr
    assert rows("select outcome from calls") == [{"outcome": "timeout"}]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("chat", "--nonsense"), "--nonsense. See: llmlab chat --help"),
        (("nosuch",), "'nosuch'. See: llmlab --help"),
        (("export",), "Missing argument"),
        (("report", "--format", "x"), "'html'. See: llmlab report --help"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line(lab, args, words):
    result = lab(*args)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


def test_a_group_without_a_command_shows_its_help(lab):
    assert "Commands:" in lab("db").output

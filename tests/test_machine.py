"""Facts about this computer, with programs on PATH that answer as GPU tools do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmlab.machine import (
    Gpu,
    Machine,
    cpu_name,
    find_gpu,
    load_average,
    machine_id,
    memory,
    power_source,
    this_machine,
)

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="the tools are shell scripts")


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """`tools("nvidia-smi", "echo …")` puts a program on a PATH that holds nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def install(name: str, script: str) -> None:
        file = folder / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    return install


def printing(text: str) -> str:
    return f"/bin/cat <<'END'\n{text}\nEND"


def test_the_facts_of_this_computer(tmp_path):
    machine = this_machine(tmp_path)
    assert machine.os in ("Linux", "Darwin", "Windows")
    assert machine.os_version
    assert machine.arch
    assert machine.cpu
    assert machine.cores_logical >= 1
    assert machine.ram_bytes == memory().total_bytes > 0
    assert this_machine(tmp_path) == machine


def test_nothing_names_the_host_or_the_person(tmp_path):
    import getpass
    import platform

    facts = {str(value).lower() for name, value in this_machine(tmp_path).row().items() if name != "os"}
    assert platform.node().lower() not in facts
    assert getpass.getuser().lower() not in facts


def test_memory_that_is_free_is_no_more_than_all():
    now = memory()
    assert 0 < now.available_bytes <= now.total_bytes


def test_power_and_load_are_known_or_not_known():
    assert power_source() in ("mains", "battery", None)
    load = load_average()
    assert load is None or load >= 0


@posix_only
def test_load_is_per_logical_core():
    assert load_average() == pytest.approx(os.getloadavg()[0] / os.cpu_count(), abs=0.5)


def test_the_class_is_that_of_the_type_and_not_of_the_one_machine():
    one = Machine(id="A", os="Linux", os_version="12", cpu="cpu", ram_bytes=(16 << 30) - 400_000_000)
    twin = Machine(id="B", os="Linux", os_version="13", cpu="cpu", ram_bytes=(16 << 30) - 300_000_000)
    other = Machine(id="A", os="Linux", os_version="12", cpu="cpu", ram_bytes=8 << 30)
    assert one.class_id == twin.class_id != other.class_id
    assert one.row()["class"] == one.class_id


@posix_only
@pytest.mark.parametrize(
    ("output", "gpu"),
    [
        ("NVIDIA GeForce RTX 4090, 24564", Gpu("NVIDIA GeForce RTX 4090", 24564 << 20)),
        ("NVIDIA A100, 40960\nNVIDIA A100, 40960", Gpu("2 × NVIDIA A100", 81920 << 20)),
        ("NVIDIA A100, 40960\nNVIDIA T4, 16384", Gpu("NVIDIA A100 + NVIDIA T4", 57344 << 20)),
        ("NVIDIA GB10, [N/A]", Gpu("NVIDIA GB10", None)),
        ("Some, card, 100", Gpu("Some, card", 100 << 20)),
        ("No devices were found", None),
        ("", None),
    ],
)
def test_nvidia(tools, output, gpu):
    tools("nvidia-smi", printing(output))
    assert find_gpu() == gpu


@posix_only
@pytest.mark.parametrize(
    ("output", "gpu"),
    [
        (
            '{"card0": {"Card Series": "Radeon RX 7900 XTX", "VRAM Total Memory (B)": "25753026560"}}',
            Gpu("Radeon RX 7900 XTX", 25753026560),
        ),
        (
            'WARNING: low power\n{"card0": {"Card series": "MI210", "VRAM Total Memory (B)": "1"}, '
            '"card1": {"Card series": "MI210", "VRAM Total Memory (B)": "2"}, "system": {"Driver version": "6"}}',
            Gpu("2 × MI210", 3),
        ),
        ('{"card0": {"Card Model": "0x744c"}}', Gpu("0x744c", None)),
        ('{"card0": "none"}', None),
        ("[]", None),
        ("no ROCm here", None),
        ("{", None),
    ],
)
def test_rocm(tools, output, gpu):
    tools("rocm-smi", printing(output))
    assert find_gpu() == gpu


@posix_only
@pytest.mark.parametrize(
    ("output", "gpu"),
    [
        (
            '{"SPDisplaysDataType": [{"_name": "Apple M2", "sppci_model": "Apple M2", "sppci_cores": "10"}]}',
            Gpu("Apple M2", None),
        ),
        (
            '{"SPDisplaysDataType": [{"_name": "kHW_Intel", "sppci_model": "Intel UHD 630"}, '
            '{"_name": "x", "sppci_model": "AMD Radeon Pro 5500M", "spdisplays_vram": "8 GB"}]}',
            Gpu("Intel UHD 630 + AMD Radeon Pro 5500M", 8 << 30),
        ),
        ('{"SPDisplaysDataType": []}', None),
        ('{"SPDisplaysDataType": [{}]}', None),
        ("[1]", None),
        ("", None),
    ],
)
def test_system_profiler(tools, output, gpu):
    tools("system_profiler", printing(output))
    assert find_gpu() == gpu


@posix_only
@pytest.mark.parametrize(
    "script",
    ["exit 9", "echo 'NVIDIA T4, 16384'; exit 1", "kill -9 $$", "printf '\\377\\376'", "exec /bin/sleep 600"],
    ids=["fails", "fails after printing", "is killed", "prints no text", "hangs"],
)
def test_a_tool_that_fails_or_hangs_means_no_gpu(tools, script):
    tools("nvidia-smi", script)
    assert find_gpu(timeout_s=0.5) is None


@posix_only
def test_the_next_tool_is_asked_where_one_fails(tools):
    tools("nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    tools("rocm-smi", printing('{"card0": {"Card Series": "MI300X", "VRAM Total Memory (B)": "5"}}'))
    assert find_gpu() == Gpu("MI300X", 5)


@posix_only
def test_a_tool_that_is_no_program_means_no_gpu(tools):
    tools("nvidia-smi", "")
    Path(os.environ["PATH"], "nvidia-smi").write_bytes(b"\x7fELF not really")
    assert find_gpu() is None


def test_no_tool_means_no_gpu(tools):
    assert find_gpu() is None


@posix_only
def test_what_the_tools_say_is_in_the_facts(tools, tmp_path):
    tools("nvidia-smi", printing("NVIDIA T4, 16384"))
    machine = this_machine(tmp_path)
    assert (machine.gpu, machine.gpu_memory_bytes) == ("NVIDIA T4", 16384 << 20)


@pytest.mark.parametrize(
    ("listing", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD Ryzen 7 5800X 8-Core Processor\n", "AMD Ryzen 7 5800X 8-Core Processor"),
        ("Architecture:  aarch64\nModel name:    Neoverse-N1\n", "Neoverse-N1"),
        ("processor\t: 0\nBogoMIPS\t: 50.00\nCPU part\t: 0xd0c\n", None),
        ("Model name:  -\n", None),
        ("model name: a : b", "a : b"),
        ("", None),
    ],
)
def test_the_cpus_name_is_found(listing, name):
    assert cpu_name(listing) == name


def test_the_id_is_made_once(tmp_path):
    folder = tmp_path / "new" / "folder"
    first = machine_id(folder)
    assert machine_id(folder) == first
    assert machine_id(tmp_path / "another") != first
    assert [file.name for file in folder.iterdir()] == ["machine-id"]


@pytest.mark.parametrize("content", ["", "\n", "01J", "x" * 5000, "01J00000000000000000000É00"])
def test_a_file_without_an_id_gets_one(tmp_path, content):
    (tmp_path / "machine-id").write_text(content, encoding="utf-8")
    made = machine_id(tmp_path)
    assert len(made) == 26
    assert machine_id(tmp_path) == made


def test_programs_that_start_at_once_agree_on_the_id(tmp_path):
    code = (
        "import sys; from pathlib import Path; from llmlab.machine import machine_id; print('ready', flush=True); "
        "sys.stdin.readline(); print(machine_id(Path(sys.argv[1])))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "data")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert len({process.communicate()[0] for process in processes}) == 1


@posix_only
def test_a_folder_that_cannot_be_made_still_gives_an_id(tmp_path):
    (tmp_path / "file").touch()
    assert len(machine_id(tmp_path / "file" / "folder")) == 26

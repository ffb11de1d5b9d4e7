"""Facts about this computer: what a measurement depends on, and nothing that names its owner."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from llmlab.call import new_id

# A tool that takes longer than this is hung: nvidia-smi needs up to two seconds where the driver must wake first.
TOOL_TIMEOUT_S = 5.0
_GIB = 1 << 30
_MIB = 1 << 20
_WINDOWS_CPU = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A computer; one field per column of `machines`, besides `class`, which follows from them.

    `id` is random and made once, so that two machines of one type are two; `gpu_memory_bytes` is the sum over all GPUs,
    None where it is shared with the system. None means unknown.
    """

    id: str
    os: str | None = None
    os_version: str | None = None
    arch: str | None = None
    cpu: str | None = None
    cores_physical: int | None = None
    cores_logical: int | None = None
    ram_bytes: int | None = None
    gpu: str | None = None
    gpu_memory_bytes: int | None = None

    @property
    def class_id(self) -> str:
        """The same for machines of one type: 16 hex digits over the facts, sizes in GiB, the OS without its version."""
        facts = [self.os, self.arch, self.cpu, self.cores_physical, self.cores_logical]
        sizes = [None if size is None else round(size / _GIB) for size in (self.ram_bytes, self.gpu_memory_bytes)]
        return hashlib.sha256(json.dumps([*facts, self.gpu, *sizes]).encode()).hexdigest()[:16]

    def row(self) -> dict[str, Any]:
        """The machine as a row of `machines`."""
        return {
            "id": self.id,
            "class": self.class_id,
            "os": self.os,
            "os_version": self.os_version,
            "arch": self.arch,
            "cpu": self.cpu,
            "cores_physical": self.cores_physical,
            "cores_logical": self.cores_logical,
            "ram_bytes": self.ram_bytes,
            "gpu": self.gpu,
            "gpu_memory_bytes": self.gpu_memory_bytes,
        }


@dataclass(frozen=True, slots=True)
class Gpu:
    """The graphics processors of this computer in one line, and their own memory together."""

    name: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory: all of it, and what programs can still get without swapping."""

    total_bytes: int
    available_bytes: int


def this_machine(data_folder: Path) -> Machine:
    """Collect the facts; the id is kept in `data_folder`. Where a GPU tool is installed this may take seconds."""
    import psutil  # type: ignore[import-untyped]

    gpu = find_gpu()
    return Machine(
        id=machine_id(data_folder),
        os=platform.system() or None,
        os_version=_os_version(),
        arch=platform.machine() or None,
        cpu=_cpu(),
        cores_physical=psutil.cpu_count(logical=False),
        cores_logical=psutil.cpu_count(logical=True),
        ram_bytes=memory().total_bytes,
        gpu=gpu.name if gpu else None,
        gpu_memory_bytes=gpu.memory_bytes if gpu else None,
    )


def machine_id(data_folder: Path) -> str:
    """This machine's id: made once; programs that start at the same moment agree on one.

    Where the folder cannot be written the id is new each time: measuring goes on.
    """
    file = data_folder / "machine-id"
    known = _read_id(file)
    if known is not None:
        return known
    made = new_id()
    try:
        data_folder.mkdir(parents=True, exist_ok=True)
        _publish(file, made)
    except OSError:
        return made
    return _read_id(file) or made


def power_source() -> str | None:
    """`mains` or `battery`; None where the computer has no battery or does not tell."""
    import psutil

    try:
        battery = psutil.sensors_battery()
    except (AttributeError, OSError, RuntimeError, ValueError):
        return None
    if battery is None or battery.power_plugged is None:
        return None
    return "mains" if battery.power_plugged else "battery"


def load_average() -> float | None:
    """The one-minute load ÷ logical cores; None where the system has none (Windows)."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except (AttributeError, OSError):
        return None


def memory() -> Memory:
    """Main memory now."""
    import psutil

    now = psutil.virtual_memory()
    return Memory(now.total, now.available)


def find_gpu(timeout_s: float = TOOL_TIMEOUT_S) -> Gpu | None:
    """What nvidia-smi, rocm-smi or system_profiler say of the GPU; None without them, or where they fail or hang."""
    for tool, arguments, parse in _GPU_TOOLS:
        found = shutil.which(tool)
        output = _output([found, *arguments], timeout_s) if found else None
        gpu = parse(output) if output else None
        if gpu is not None:
            return gpu
    return None


def _nvidia(text: str) -> Gpu | None:
    """Lines `NVIDIA GeForce RTX 4090, 24564` (MiB); the memory of a chip that shares the system's is `[N/A]`."""
    cards = [line.rsplit(",", 1) for line in text.splitlines() if "," in line]
    names = [card[0].strip() for card in cards]
    return _together(names, [_mebibytes(card[1]) for card in cards])


def _rocm(text: str) -> Gpu | None:
    """`{"card0": {"Card Series": "…", "VRAM Total Memory (B)": "17163091968"}, …}`, at times after warnings."""
    try:
        cards = json.loads(text[text.index("{") :])
    except ValueError:
        return None
    if not isinstance(cards, dict):
        return None
    facts = [{str(k).lower(): v for k, v in card.items()} for card in cards.values() if isinstance(card, dict)]
    facts = [card for card in facts if card.get("card series") or card.get("card model")]
    names = [str(card.get("card series") or card["card model"]) for card in facts]
    return _together(names, [_integer(card.get("vram total memory (b)")) for card in facts])


def _apple(text: str) -> Gpu | None:
    """system_profiler's list; Apple's own chips share the memory of the system and name none."""
    try:
        cards = json.loads(text)["SPDisplaysDataType"]
        names = [str(card.get("sppci_model") or card["_name"]) for card in cards]
        sizes = [_spoken_size(str(card.get("spdisplays_vram", ""))) for card in cards]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return _together(names, sizes)


_GPU_TOOLS = (
    ("nvidia-smi", ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits"), _nvidia),
    ("rocm-smi", ("--showproductname", "--showmeminfo", "vram", "--json"), _rocm),
    ("system_profiler", ("SPDisplaysDataType", "-json"), _apple),
)


def _together(names: list[str], sizes: list[int | None]) -> Gpu | None:
    """Several cards as one: `2 × NVIDIA A100 + NVIDIA T4`."""
    if not names:
        return None
    counts = {name: names.count(name) for name in names}
    known = [size for size in sizes if size]
    return Gpu(
        " + ".join(name if n == 1 else f"{n} × {name}" for name, n in counts.items()), sum(known) if known else None
    )


def _integer(value: object) -> int | None:
    try:
        return int(str(value))
    except ValueError:
        return None


def _mebibytes(text: str) -> int | None:
    size = _integer(text.strip())
    return None if size is None else size * _MIB


def _spoken_size(text: str) -> int | None:
    """`8 GB`, `1536 MB`."""
    number, _, unit = text.partition(" ")
    size = _integer(number)
    factor = {"GB": _GIB, "MB": _MIB}.get(unit)
    return None if size is None or factor is None else size * factor


def _os_version() -> str | None:
    system = platform.system()
    if system == "Darwin":
        return platform.mac_ver()[0] or None
    if system != "Linux":
        return platform.version() or None
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME") or platform.release()
    except OSError:
        return platform.release() or None


@cache
def _cpu() -> str | None:
    """The model name as its maker writes it; `platform.processor()` only says `x86_64` or `arm`."""
    system = platform.system()
    if system == "Darwin":
        name = _output(["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], TOOL_TIMEOUT_S)
    elif system == "Windows":
        name = _windows_cpu()
    else:
        name = _linux_cpu()
    return " ".join(name.split()) if name and name.strip() else platform.processor() or platform.machine() or None


def _linux_cpu() -> str | None:
    return (
        cpu_name(_text(Path("/proc/cpuinfo")))
        or _text(Path("/proc/device-tree/model")).rstrip("\0")  # a board such as the Raspberry Pi
        or cpu_name(_lscpu())  # knows the names of ARM cores
    )


def cpu_name(listing: str) -> str | None:
    """The model name in the text of /proc/cpuinfo or lscpu."""
    for line in listing.splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() == "model name" and value.strip() not in ("", "-"):
            return value.strip()
    return None


def _lscpu() -> str:
    found = shutil.which("lscpu")
    return (_output([found], TOOL_TIMEOUT_S) if found else None) or ""


def _windows_cpu() -> str | None:
    if sys.platform == "win32":
        import winreg

        with suppress(OSError), winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _WINDOWS_CPU) as key:
            return str(winreg.QueryValueEx(key, "ProcessorNameString")[0])
    return None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _output(command: list[str], timeout_s: float) -> str | None:
    """What a tool prints; None where it fails, hangs or cannot be run."""
    environment: Mapping[str, str] = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def _read_id(file: Path) -> str | None:
    text = _text(file).strip()
    return text if len(text) == 26 and text.isascii() and text.isalnum() else None


def _publish(file: Path, made: str) -> None:
    """Put `made` into `file` unless somebody was quicker; a file that holds no id (cut short) is replaced."""
    draft = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
    draft.write_text(made + "\n", encoding="utf-8")
    try:
        if file.exists() and _read_id(file) is None:
            draft.replace(file)
            return
        os.link(draft, file)  # all or nothing, and fails where the file is there
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        if not file.exists():
            draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)

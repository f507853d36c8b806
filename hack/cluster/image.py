"""The container images of a cluster without a registry, made from this machine's files.

In: busybox (static), bash and the C library. Out: one OCI image layout in a tar for `ctr images
import`, byte for byte the same for the same input. The C library is the machine's own, because
programs that a driver injects (nvidia-smi, or a libnvidia-ml compiled here) were linked against it.
PATH and LD_LIBRARY_PATH, and the two NVIDIA_ variables that a CDI driver has to overrule, are those
of NVIDIA's CUDA images.
"""

import hashlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError

TEST_IMAGE = "registry.local/gpu-test:1"
SANDBOX_IMAGE = "registry.local/pause:1"
CUDA_ENV = {
    "PATH": "/usr/local/nvidia/bin:/usr/local/cuda/bin:"
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
}
# Parts of the C library that are loaded by name: NVIDIA's user-space programs need them.
C_LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
MERGED = ("bin", "sbin", "lib", "lib64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One path of a root file system: a folder, a file with content, or a link to a target."""

    path: str
    mode: int
    content: bytes | None = None
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image: its name, its root file system, and what runs in it by default."""

    name: str
    entries: tuple[Entry, ...]
    env: Mapping[str, str]
    command: tuple[str, ...]


def gpu_test_image(busybox: Path) -> Image:
    """busybox, bash and the machine's C library, at the same places as in Debian."""
    files = {"usr/bin/busybox": busybox, "usr/bin/bash": Path("/bin/bash").resolve()}
    for path in _shared_libraries(Path("/bin/bash")):
        files[_merged(path)] = path.resolve()
    entries = [*_skeleton(), *_users()]
    for inside, path in files.items():
        entries.append(Entry(path=inside, mode=0o755, content=path.read_bytes()))
    # A link busybox -> busybox would replace the program itself.
    applets = (name for name in _applets(busybox) if name not in ("busybox", "bash"))
    entries.extend(Entry(path=f"usr/bin/{name}", mode=0o777, target="busybox") for name in applets)
    return Image(name=TEST_IMAGE, entries=tuple(entries), env=CUDA_ENV, command=("/bin/bash",))


def sandbox_image(busybox: Path) -> Image:
    """The image of the process that keeps a pod's namespaces: it only sleeps."""
    program = Entry(path="usr/bin/busybox", mode=0o755, content=busybox.read_bytes())
    return Image(
        name=SANDBOX_IMAGE,
        entries=(*_skeleton(), program),
        env={"PATH": "/bin"},
        command=("/bin/busybox", "sleep", "2147483647"),
    )


def write_archive(images: Sequence[Image], path: Path, arch: str) -> None:
    """Write images as one OCI image layout in a tar."""
    blobs: dict[str, bytes] = {}
    manifests = [
        {
            **_manifest(image, blobs, arch),
            # containerd names an imported image by this annotation.
            "annotations": {"io.containerd.image.name": image.name},
        }
        for image in images
    ]
    index = {"schemaVersion": 2, "manifests": manifests}
    files = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": _json(index),
        **{f"blobs/sha256/{digest}": content for digest, content in sorted(blobs.items())},
    }
    entries = [Entry(path=name, mode=0o644, content=content) for name, content in files.items()]
    path.write_bytes(_tar(entries))


def _manifest(image: Image, blobs: dict[str, bytes], arch: str) -> dict[str, object]:
    layer = _tar(sorted(_with_parents(image.entries), key=lambda entry: entry.path))
    config = {
        "architecture": arch,
        "os": "linux",
        "config": {
            "Env": [f"{name}={value}" for name, value in image.env.items()],
            "Cmd": list(image.command),
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(layer)}"]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "hack/cluster"}],
    }
    kind = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{kind}.manifest.v1+json",
        "config": _blob(_json(config), f"{kind}.config.v1+json", blobs),
        "layers": [_blob(layer, f"{kind}.layer.v1.tar", blobs)],
    }
    return {
        **_blob(_json(manifest), f"{kind}.manifest.v1+json", blobs),
        "platform": {"architecture": arch, "os": "linux"},
    }


def _blob(content: bytes, media_type: str, blobs: dict[str, bytes]) -> dict[str, object]:
    digest = _digest(content)
    blobs[digest] = content
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _tar(entries: Iterable[Entry]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            # No owner, no time: the same input gives the same digest.
            info = tarfile.TarInfo(entry.path)
            info.mode = entry.mode
            if entry.target:
                info.type, info.linkname = tarfile.SYMTYPE, entry.target
                tar.addfile(info)
            elif entry.content is None:
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            else:
                info.size = len(entry.content)
                tar.addfile(info, io.BytesIO(entry.content))
    return out.getvalue()


def _with_parents(entries: Iterable[Entry]) -> list[Entry]:
    """The entries and the folders above them, each path once."""
    known = {entry.path: entry for entry in entries}
    for path in list(known):
        for parent in list(Path(path).parents)[:-1]:
            known.setdefault(str(parent), Entry(path=str(parent), mode=0o755))
    return list(known.values())


def _skeleton() -> list[Entry]:
    links = [Entry(path=name, mode=0o777, target=f"usr/{name}") for name in MERGED]
    folders = ("dev", "etc", "proc", "root", "run", "sys", "var", *(f"usr/{m}" for m in MERGED))
    scratch = [Entry(path=path, mode=0o1777) for path in ("tmp", "var/tmp")]
    return [*links, *(Entry(path=path, mode=0o755) for path in folders), *scratch]


def _users() -> list[Entry]:
    files = {
        "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n",
        "etc/group": "root:x:0:\nvideo:x:44:\nrender:x:105:\nnogroup:x:65534:\n",
        "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        "etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n",
    }
    return [Entry(path=path, mode=0o644, content=text.encode()) for path, text in files.items()]


def _shared_libraries(program: Path) -> list[Path]:
    """The files that a program's loader loads, the loader itself, and the whole C library."""
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
    paths = [Path(path) for path in re.findall(r"(/\S+) \(0x", done.stdout)]
    libc = next((path for path in paths if path.name == "libc.so.6"), None)
    if libc is None:
        raise ClusterError(
            f"ldd does not say which C library {program} uses; the test image needs a glibc "
            f"system such as Debian: {done.stderr.strip()}"
        )
    siblings = [libc.with_name(name) for name in (*C_LIBRARIES, "libgcc_s.so.1")]
    return sorted({*paths, *(path for path in siblings if path.exists())})


def _merged(path: Path) -> str:
    """A library's path in the image, where /lib and /lib64 are links into /usr."""
    inside = str(path).lstrip("/")
    return inside if inside.startswith("usr/") else f"usr/{inside}"


def _applets(busybox: Path) -> list[str]:
    done = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{busybox} --list failed: {done.stderr.strip()}")
    return sorted(done.stdout.split())


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

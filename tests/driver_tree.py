"""Builders of what a driver installation leaves on disk, for tests."""

import struct
from pathlib import Path


def elf(soname: str | None, *, bits: int = 64, order: str = "<") -> bytes:
    """A shared library reduced to what names it: a dynamic section with a SONAME, or without."""
    word, base = ("Q", 0x1000) if bits == 64 else ("I", 0x1000)
    names = b"\0" + (soname or "").encode() + b"\0"
    header, entry = (64, 56) if bits == 64 else (52, 32)
    dynamic_at = header + 2 * entry
    tags = [(14, 1)] if soname is not None else []
    names_at = dynamic_at + (len(tags) + 2) * 2 * struct.calcsize(word)
    tags += [(5, base + names_at), (0, 0)]
    dynamic = b"".join(struct.pack(f"{order}2{word}", tag, value) for tag, value in tags)
    whole = names_at + len(names)

    def segment(kind: int, offset: int, size: int) -> bytes:
        if bits == 64:
            fields = (kind, 4, offset, base + offset, base + offset, size, size, 8)
            return struct.pack(f"{order}IIQQQQQQ", *fields)
        fields = (kind, offset, base + offset, base + offset, size, size, 4, 8)
        return struct.pack(f"{order}IIIIIIII", *fields)

    ident = b"\x7fELF" + bytes([bits // 32, 1 if order == "<" else 2, 1]) + bytes(9)
    rest = struct.pack(
        f"{order}HHI{word}{word}{word}IHHHHHH", 3, 62, 1, 0, header, 0, 0, header, entry, 2, 0, 0, 0
    )
    head = ident + rest + segment(1, 0, whole) + segment(2, dynamic_at, len(dynamic))
    return head + dynamic + names


def driver_root(root: Path, version: str = "550.54.15") -> Path:
    """A driver root with two libraries and their links, nvidia-smi, and device nodes' stand-ins."""
    folder = root / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    for stem in ("libcuda", "libnvidia-ml"):
        library = folder / f"{stem}.so.{version}"
        library.write_bytes(elf(f"{stem}.so.1"))
        (folder / f"{stem}.so.1").symlink_to(library.name)
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    program = root / "usr/bin/nvidia-smi"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (root / "dev").mkdir(parents=True)
    for node in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"):
        (root / "dev" / node).touch(mode=0o666)
        (root / "dev" / node).chmod(0o666)
    (root / "proc").mkdir()
    (root / "proc/devices").write_text("Character devices:\n195 nvidia\n510 nvidia-uvm\n226 drm\n")
    return root


def upgrade(root: Path, old: str, new: str, stems: str = "") -> None:
    """Replace a driver's files below a folder by those of another version, or some by their stem.

    What the kernel says follows with the last of them, as after a reload of its modules.
    """
    for path in sorted(root.rglob(f"{stems}*{old}*"), reverse=True):
        path.rename(path.with_name(path.name.replace(old, new)))
    for path in filter(Path.is_symlink, root.rglob("*")):
        target = str(path.readlink())
        if old in target and path.with_name(target.replace(old, new)).exists():
            path.unlink()
            path.symlink_to(target.replace(old, new))
    if not stems:
        kernel = next(root.rglob("proc/driver/nvidia/version"))
        kernel.write_text(kernel.read_text().replace(old, new))

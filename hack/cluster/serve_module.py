"""Puts a Go module that no module proxy has, because nobody tagged it, where go finds it.

    hack/cluster/serve_module.py FOLDER MODULE VERSION REPOSITORY [PATH]

The version ends in the commit; the module is at PATH in the git repository. Then
`GOPROXY=file://FOLDER,https://proxy.golang.org,direct` has it. It is packed as by a module proxy,
so that go.sum can verify it.
"""

import io
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path


def serve(folder: Path, module: str, version: str, repository: str, path: str = "") -> None:
    """Write the module's three files, laid out as by `go help goproxy`."""
    commit = version.rpartition("-")[2]

    def git(*words: str) -> bytes:
        command = ("git", "-C", repository, *words)
        return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout

    with tarfile.open(fileobj=io.BytesIO(git("archive", f"{commit}:{path}"))) as archive:
        files = {one.name: archive.extractfile(one) for one in archive if one.isreg()}
        contents = {name: found.read() for name, found in files.items() if found}
    if "LICENSE" not in contents:
        contents["LICENSE"] = git("show", f"{commit}:LICENSE")
    modules = [name.removesuffix("go.mod") for name in contents if name.endswith("/go.mod")]
    target = folder / module / "@v"
    target.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target / f"{version}.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in contents.items():
            if not name.startswith(tuple(modules)):
                packed.writestr(f"{module}@{version}/{name}", content)
    (target / f"{version}.mod").write_bytes(contents["go.mod"])
    (target / f"{version}.info").write_text(json.dumps({"Version": version}))


if __name__ == "__main__":
    serve(Path(sys.argv[1]), *sys.argv[2:])

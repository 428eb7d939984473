"""
Build the control plane's programs from the Go module proxy, once for each version.

The end-to-end tests want the real etcd, API server, scheduler, metrics-server, KWOK and Go load-watcher without containers or downloaded
binaries. Each part has a small Go module in ``go/``; what it builds is kept under ``$TRIMARAN_CACHE`` (default ``~/.cache/trimaran``) in
a folder named by the digest of everything that decides the result. ``python -m tests.e2e.binaries`` builds all parts ahead of the tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

GO_MODULES = Path(__file__).parent / "go"
PROGRESS_SECONDS = 15.0
ERROR_TAIL_LINES = 30


class BinariesError(Exception):
    """The control plane could not be built; the message holds the tail of Go's output."""


@dataclass(frozen=True)
class Part:
    """
    One Go module of ``go/`` and what to build from it.

    Attributes:
        name: The module's folder in ``go/``.
        programs: Name of a binary → package that it is built from.
        flags: Flags of ``go build``.
        assets: Name of a folder → module and folder within it that are copied next to the binaries.
    """

    name: str
    programs: Mapping[str, str]
    flags: tuple[str, ...] = ("-trimpath",)
    assets: Mapping[str, tuple[str, str]] = field(default_factory=dict)


# Without these the API server reports v0.0.0-master, which clients cannot parse.
_KUBERNETES_LDFLAGS = "-s -w " + " ".join(
    f"-X k8s.io/component-base/version.{name}={value}" for name, value in (("gitVersion", "v1.36.3"), ("gitMajor", "1"), ("gitMinor", "36"))
)

PARTS = (
    Part("etcd", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Part(
        "kubernetes",
        {name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kube-apiserver", "kube-scheduler", "kubectl")},
        flags=("-trimpath", "-ldflags", _KUBERNETES_LDFLAGS),
    ),
    Part("kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}, assets={"kustomize": ("sigs.k8s.io/kwok", "kustomize")}),
    Part("metrics-server", {"metrics-server": "sigs.k8s.io/metrics-server/cmd/metrics-server"}),
    Part("go-load-watcher", {"go-load-watcher": "github.com/paypal/load-watcher"}),
    # In the repository's own tree Go would stamp the commit into the binary, and refuse where git is missing.
    Part("client", {"watcher-client": "."}, flags=("-trimpath", "-buildvcs=false")),
)


@dataclass(frozen=True)
class Binaries:
    """
    Where the built programs are.

    Attributes:
        programs: Name of a program → its file.
        kwok_kustomize: KWOK's own ``kustomize`` folder, which holds its stages and metrics.
    """

    programs: Mapping[str, Path]
    kwok_kustomize: Path

    def path(self, program: str) -> Path:
        """Return the file of *program*, such as ``kube-apiserver``."""
        return self.programs[program]


def build_all() -> Binaries:
    """
    Return all programs, building one after another those that the cache lacks.

    Raises:
        BinariesError: When Go fails; the message holds the end of its output.
    """
    root = _cache_root()
    root.mkdir(parents=True, exist_ok=True)
    folders = {part.name: _build_part(part, root) for part in PARTS}
    return Binaries(
        programs={program: folders[part.name] / program for part in PARTS for program in part.programs},
        kwok_kustomize=folders["kwok"] / "kustomize",
    )


def _cache_root() -> Path:
    cache = os.environ.get("TRIMARAN_CACHE")
    return (Path(cache) if cache else Path.home() / ".cache" / "trimaran") / "control-plane"


def _build_part(part: Part, root: Path) -> Path:
    """Return the folder with *part*'s binaries; it appears by one rename, so a killed build leaves no half of it."""
    target = root / f"{part.name}-{_compute_digest(part)}"
    if target.is_dir():
        return target
    with _exclusive(root, waiting_for=part.name):
        if target.is_dir():
            return target
        for leftover in root.glob(".building-*"):  # of a killed build: whoever holds the lock is the only builder
            shutil.rmtree(leftover)
        building = Path(tempfile.mkdtemp(prefix=".building-", dir=root))
        building.chmod(0o755)
        try:
            for program, package in part.programs.items():
                _run_go(part, "build", *part.flags, "-o", str(building / program), package, label=f"building {program}")
            for name, (module, folder) in part.assets.items():
                _run_go(part, "mod", "download", module, label=f"fetching {module}")
                _copy_writable(Path(_ask_go(part, "list", "-m", "-f", "{{.Dir}}", module)) / folder, building / name)
            building.rename(target)
        except BaseException:
            shutil.rmtree(building)
            raise
    return target


def _compute_digest(part: Part) -> str:
    """Digest the module's files, the flags and the Go version: whatever decides what the build makes."""
    digest = hashlib.sha256()
    for path in sorted((GO_MODULES / part.name).iterdir()):
        digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    digest.update(repr((sorted(part.programs.items()), part.flags, sorted(part.assets.items()))).encode())
    digest.update(_ask_go(part, "version").encode())
    return digest.hexdigest()[:16]


@contextmanager
def _exclusive(root: Path, *, waiting_for: str) -> Iterator[None]:
    """Let one process build at a time; the kernel frees the lock when its holder dies."""
    with (root / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _report(f"{waiting_for}: waiting for another build")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _copy_writable(source: Path, destination: Path) -> None:
    """Copy a folder of the module cache, whose read-only modes would keep the copy from being removed."""
    shutil.copytree(source, destination, copy_function=shutil.copyfile)
    for folder, _, _ in os.walk(destination):
        Path(folder).chmod(0o755)


def _ask_go(part: Part, *arguments: str) -> str:
    answer = subprocess.run(["go", *arguments], cwd=GO_MODULES / part.name, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise BinariesError(f"{part.name}: go {' '.join(arguments)} failed:\n{answer.stderr.strip()}")
    return answer.stdout.strip()


def _run_go(part: Part, *arguments: str, label: str) -> None:
    """Run Go in the part's module, telling about every quarter of a minute that it still runs."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(["go", *arguments], cwd=GO_MODULES / part.name, stdout=output, stderr=subprocess.STDOUT)
        try:
            while True:
                _report(f"{part.name}: {label}, {time.monotonic() - started:.0f} s")
                try:
                    code = process.wait(PROGRESS_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            process.terminate()
            process.wait()
            raise
        if code != 0:
            output.seek(0)
            tail = "".join(output.readlines()[-ERROR_TAIL_LINES:])
            raise BinariesError(f"{part.name}: go {' '.join(arguments)} ended with {code}:\n{tail}")
    _report(f"{part.name}: {label}, done in {time.monotonic() - started:.0f} s")


def _report(line: str) -> None:
    sys.stderr.write(f"control plane: {line}\n")
    sys.stderr.flush()


def main() -> int:
    """Build all parts; the exit code is 1 when Go is missing or fails."""
    if shutil.which("go") is None:
        _report("Go is missing; install it (https://go.dev/doc/install) to build the control plane")
        return 1
    try:
        binaries = build_all()
    except BinariesError as error:
        _report(str(error))
        return 1
    for program, path in binaries.programs.items():
        _report(f"{program}: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

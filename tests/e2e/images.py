"""
Build the images and run them without a container engine, as root on Linux.

The base is a small Debian by debootstrap, kept under ``$TRIMARAN_CACHE`` (default ``~/.cache/trimaran``) in a file named by what decides
it; buildah builds on it with chroot as its isolation. A container here is a process in a mount namespace of its own, with the image as its
read-only root and the image's own user, environment and entry point.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.api import JsonObject

ROOT = Path(__file__).parents[2]
SUITE = "trixie"  # Python 3.13, as the default base
DEBOOTSTRAP = ("debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates", SUITE)
USELESS = ("usr/share/doc", "usr/share/locale", "usr/share/man", "var/cache/apt", "var/lib/apt/lists")
BASE_DOCKERFILE = 'FROM scratch\nADD base.tar /\nCMD ["python3"]\n'
BUILD_SECONDS = 300.0
ERROR_TAIL_LINES = 30
# Of pip's settings here, those that say how to reach its index; `cert` goes with them as a file.
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")

# Enters the root, becomes the user and dies with its parent, in this order: to change the user would undo the last.
_ENTER = """
import ctypes, os, sys
root, user, group = sys.argv[1], *map(int, sys.argv[2].split(":"))
os.chroot(root)
os.chdir("/")
os.setgroups([])
os.setgid(group)
os.setuid(user)
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
libc.prctl(1, 9)  # PR_SET_PDEATHSIG
os.execve(sys.argv[3], sys.argv[3:], dict(os.environ))
"""
# $1: the root; $2: writable folders in it; then pairs of a folder here and where it is seen; then --.
_MOUNT = """
root=$1 writable=$2; shift 2
mount --bind "$root" "$root"
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
for folder in $writable; do mkdir -p "$root$folder"; mount -t tmpfs -o mode=0777 tmpfs "$root$folder"; done
while [ "$1" != -- ]; do mkdir -p "$root$2"; mount --bind -o ro "$1" "$root$2"; shift 2; done
shift
mount -o remount,bind,ro "$root"
exec "$@"
"""


class ImageError(Exception):
    """An image could not be built; the message holds the end of the output."""


@dataclass(frozen=True)
class Image:
    """
    A built image.

    Attributes:
        name: The target that it was built from.
        root: Its files.
        config: What it says of itself, in Docker's form.
        history: How its layers came to be, as one text.
    """

    name: str
    root: Path
    config: JsonObject
    history: str

    def command(
        self,
        *arguments: str,
        program: str = "",
        settings: Mapping[str, str] | None = None,
        mounts: Mapping[str, Path] | None = None,
    ) -> list[str]:
        """
        Return the command line that runs a container.

        Args:
            arguments: Of the entry point.
            program: Another program than the entry point.
            settings: Environment variables beside those of the image.
            mounts: Folder in the container → folder here, read-only.

        Raises:
            ValueError: When a mounted folder is behind a link of the image, which would lead out of it here.
        """
        for seen in mounts or {}:
            if not (self.root / seen.removeprefix("/")).resolve().is_relative_to(self.root):
                raise ValueError(f"{seen} is behind a link of {self.name}; name what it points to")
        environment = [*self.config["Env"], *(f"{name}={value}" for name, value in (settings or {}).items())]
        pairs = [part for seen, folder in (mounts or {}).items() for part in (str(folder), seen)]
        entry = [program] if program else self.config["Entrypoint"]
        return [
            *("unshare", "--mount", "--propagation", "private", "sh", "-ec", _MOUNT, "mount"),
            *(str(self.root), " ".join(self.config.get("Volumes") or ()), *pairs, "--"),
            *("env", "-i", *environment, sys.executable, "-ISc", _ENTER, str(self.root), self.config["User"]),
            *(*entry, *arguments),
        ]


class ImageBuilder:
    """
    Builds images into a folder that goes away with them.

    Args:
        folder: Where the layers and the containers' files go, a gigabyte or two.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._storage = ("--root", str(folder / "root"), "--runroot", str(folder / "run"), "--storage-driver", "vfs")
        self._secrets = write_pip_secrets(folder)

    async def build_base(self) -> str:
        """Build the base image, and return its name."""
        await self._run("bud", "--isolation", "chroot", "--tag", "localhost/base", provide_base())
        return "localhost/base"

    async def build(self, target: str, *, base: str) -> Image:
        """Build one target of our Dockerfile, and unpack it."""
        secrets = [part for name, path in self._secrets.items() for part in ("--secret", f"id={name},src={path}")]
        await self._run(
            *("bud", "--isolation", "chroot", "--format", "docker", "--build-arg", f"BASE_IMAGE={base}", *secrets),
            *("--target", target, "--tag", f"localhost/{target}", "--file", ROOT / "docker/Dockerfile", ROOT),
        )
        container = (await self._run("from", "--pull-never", f"localhost/{target}")).strip()
        root = (await self._run("mount", container)).strip()
        description = json.loads(await self._run("inspect", "--type", "image", f"localhost/{target}"))
        return Image(target, Path(root), description["Docker"]["config"], json.dumps(description["OCIv1"]["history"]))

    async def _run(self, *arguments: str | Path) -> str:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *("buildah", *self._storage, *map(str, arguments)), stdout=pipe, stderr=pipe, env=os.environ | {"TMPDIR": str(self._folder)}
        )
        try:
            async with asyncio.timeout(BUILD_SECONDS):
                output, errors = await process.communicate()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        if process.returncode != 0:
            tail = "\n".join((output + errors).decode(errors="replace").splitlines()[-ERROR_TAIL_LINES:])
            raise ImageError(f"buildah {arguments[0]} ended with {process.returncode}:\n{tail}")
        return output.decode()


def provide_base() -> Path:
    """
    Return the folder that the base image is built from, made by debootstrap where the cache lacks it, which takes most of a minute.

    Raises:
        ImageError: When debootstrap fails.
    """
    cache = os.environ.get("TRIMARAN_CACHE")
    root = (Path(cache) if cache else Path.home() / ".cache" / "trimaran") / "images"
    root.mkdir(parents=True, exist_ok=True)
    target = root / f"base-{hashlib.sha256(repr((DEBOOTSTRAP, USELESS, BASE_DOCKERFILE)).encode()).hexdigest()[:16]}"
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel frees it when its holder dies
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=root) as building:
                _make_base(Path(building), target)
    return target


def _make_base(building: Path, target: Path) -> None:
    """Fill *building* and make *target* of it by one rename."""
    tree, context = building / "tree", building / "context"
    done = subprocess.run([*DEBOOTSTRAP, tree], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ImageError("\n".join(["debootstrap failed:", *(done.stdout + done.stderr).splitlines()[-ERROR_TAIL_LINES:]]))
    for useless in USELESS:  # as slim images do; each build copies every file several times
        for path in tree.glob(useless):
            shutil.rmtree(path)
    context.mkdir()
    subprocess.run(["tar", "--directory", tree, "--create", "--file", context / "base.tar", "."], check=True)
    (context / "Dockerfile").write_text(BASE_DOCKERFILE)
    context.rename(target)


def write_pip_secrets(folder: Path) -> dict[str, Path]:
    """Write how pip reaches its index on this machine, in the form that the Dockerfile takes: id of a secret → file."""
    listing = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True).stdout
    known: dict[str, str] = {}
    for line in sorted(listing.splitlines(), key=lambda line: line.startswith(":env:")):  # the environment's win
        name, _, value = line.partition("=")
        known[name.rpartition(".")[2]] = value.strip("'\"")
    parser = ConfigParser(interpolation=None)
    parser["global"] = {name: known[name] for name in PIP_SETTINGS if name in known}
    secrets = {"pip.conf": folder / "pip.conf"}
    if "cert" in known:
        parser["global"]["cert"] = "/run/secrets/ca.pem"
        secrets["ca.pem"] = Path(known["cert"])
    with secrets["pip.conf"].open("w") as file:
        parser.write(file)
    return secrets

"""Debian trees that boot: built once with mmdebstrap from this machine's own package sources, kept in .cache/guest/.

What a guest needs to reach the same registries as this machine (apt sources and options, pip.conf, the CA bundle) is
copied into the tree at build time, so nothing here names a registry.
"""

import fcntl
import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
CACHE = ROOT / ".cache/guest"

PACKAGES = [
    *["systemd", "systemd-sysv", "dbus", "udev", "kmod", "libpam-systemd", "polkitd", "cloud-init", "sudo"],
    *["python3", "python3-venv", "e2fsprogs", "iproute2", "netbase", "ca-certificates", "procps", "less", "pciutils"],
]
KERNEL_PACKAGES = ["linux-image-cloud-amd64", "initramfs-tools", "zstd", "openssh-server"]

CLOUD_CONFIG = """\
datasource_list: [NoCloud, None]
network: {config: disabled}
apt: {preserve_sources_list: true}
ssh_genkeytypes: []
locale: C.UTF-8
"""


class ImageFailed(Exception):
    """The tree could not be built; the message holds the end of what mmdebstrap said."""


@dataclass(frozen=True)
class Image:
    """A Debian tree, and with a kernel also what qemu boots it with. Never written to once it is built."""

    suite: str
    folder: Path

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.folder / "initrd.img"


def image(suite: str, *, with_kernel: bool = False) -> Image:
    """The tree of `suite`, built in a minute or two when it is not in the cache. Raises ImageFailed."""
    kind = f"{suite}-vm" if with_kernel else suite
    builder = hashlib.sha256(Path(__file__).read_bytes() + kind.encode()).hexdigest()[:12]
    folder = CACHE / f"{kind}-{builder}"
    with _only_builder(kind):
        if not folder.exists():
            for older in CACHE.glob(f"{kind}-[0-9a-f]*"):
                shutil.rmtree(older)
            building = CACHE / f"{kind}.building"
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir()
            _build(Image(suite, building), with_kernel)
            building.rename(folder)
    return Image(suite, folder)


@contextmanager
def _only_builder(kind: str) -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(image: Image, with_kernel: bool) -> None:
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("man", "doc", "locale")]
    # Its mounts are its own: had they stayed behind in a tree, removing the tree would remove what is mounted there.
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"]
    command += ["mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory"]
    command += [f"--include={','.join(PACKAGES + (KERNEL_PACKAGES if with_kernel else []))}", *excluded]
    # The tree is thrown away when its build is cut short, so nothing need be safe on disk before the end.
    command += ["--dpkgopt=force-unsafe-io", '--aptopt=APT::Install-Recommends "false"']
    command += [f"--aptopt={path}" for path in _apt_options()]
    if with_kernel:
        command += [f"--essential-hook=copy-in {_initrd_settings(image.folder)} /etc"]
    command += [image.suite, str(image.tree), *map(str, _apt_sources(image))]
    built = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if built.returncode != 0:
        raise ImageFailed(f"mmdebstrap of {image.suite} ended with {built.returncode}:\n{built.stderr[-3000:]}")
    _settle(image.tree)
    if with_kernel:
        _make_bootable(image)


def _apt_sources(image: Image) -> list[Path]:
    """This machine's sources with the suite in the place of its own."""
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    ours = release.get("VERSION_CODENAME", "")
    found = []
    etc = Path("/etc/apt")
    for source in [etc / "sources.list", *sorted(etc.glob("sources.list.d/*"))]:
        text = source.read_text() if source.suffix in (".list", ".sources") and source.exists() else ""
        if ours and re.search(rf"^(deb |Suites:).*\b{ours}\b", text, re.MULTILINE):
            copy = image.folder / source.name
            copy.write_text(re.sub(rf"\b{ours}\b", image.suite, text))
            found.append(copy)
    if not found:
        raise ImageFailed(f"no apt sources for {ours or 'this system'} to take {image.suite} from; it must be a Debian")
    return found


def _apt_options() -> list[Path]:
    return [path for path in sorted(Path("/etc/apt/apt.conf.d").iterdir()) if "Acquire::" in path.read_text()]


def _initrd_settings(folder: Path) -> Path:
    """The few modules that a qemu machine needs to find its disk: a small initrd starts in half the time."""
    settings = folder / "initramfs-tools"
    (settings / "conf.d").mkdir(parents=True)
    (settings / "conf.d/zz-guest").write_text("MODULES=list\nCOMPRESS=zstd\n")
    (settings / "modules").write_text("virtio_pci\nvirtio_blk\nvirtio_net\next4\ncrc32c_generic\n")
    return settings


def _settle(tree: Path) -> None:
    (tree / "etc/fstab").write_text("")
    (tree / "etc/hostname").write_text("guest\n")
    (tree / "etc/hosts").write_text("127.0.0.1 localhost\n127.0.1.1 guest\n::1 localhost\n")
    (tree / "etc/machine-id").write_text("")
    (tree / "etc/cloud/cloud.cfg.d/90_guest.cfg").write_text(CLOUD_CONFIG)
    timers = ["apt-daily.timer", "apt-daily-upgrade.timer"]
    subprocess.run(["systemctl", f"--root={tree}", "disable", *timers], check=True, capture_output=True)
    shutil.copyfile("/etc/ssl/certs/ca-certificates.crt", tree / "etc/ssl/certs/ca-certificates.crt")
    if Path("/etc/pip.conf").exists():
        shutil.copyfile("/etc/pip.conf", tree / "etc/pip.conf")


def _make_bootable(image: Image) -> None:
    tree = image.tree
    (tree / "etc/fstab").write_text("/dev/vda / ext4 errors=remount-ro 0 1\nLABEL=supply /supply ext4 ro,nofail 0 2\n")
    (tree / "supply").mkdir()
    (tree / "etc/systemd/network/eth0.network").write_text("[Match]\nName=eth0\n[Network]\nDHCP=yes\n")
    (tree / "etc/resolv.conf").write_text("nameserver 10.0.2.3\n")  # The DNS of qemu's user network.
    for key in tree.glob("etc/ssh/ssh_host_*"):
        key.unlink()
    subprocess.run(["systemctl", f"--root={tree}", "enable", "systemd-networkd"], check=True, capture_output=True)
    (kernel,), (initrd,) = tree.glob("boot/vmlinuz-*"), tree.glob("boot/initrd.img-*")
    shutil.copyfile(kernel, image.kernel)
    shutil.copyfile(initrd, image.initrd)

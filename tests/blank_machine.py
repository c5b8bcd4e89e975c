"""A machine to provision, in a folder: its root, and stubs on PATH that note what is asked and do as a machine would.

Driver libraries are compiled, so that the probe's own calls are tried: their answers come from a file.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CLOUD_INIT = ROOT / "cloud-init"
sys.path.append(str(CLOUD_INIT))

from provision.machine import Machine  # noqa: E402
from provision.main import check, provision  # noqa: E402
from provision.settings import Settings, read_settings  # noqa: E402

KERNELS = {"ubuntu": "6.8.0-1021-aws", "debian": "6.1.0-41-cloud-amd64"}
STUBS = (
    *("apt-get", "apt-cache", "apt-mark", "dpkg", "dpkg-query", "modprobe", "modinfo", "uname", "systemctl"),
    *("blkid", "mkfs.ext4", "mdadm", "mount", "wall", "nvidia-smi", "ubuntu-drivers", "install"),
)
H100, NVSWITCH = "0x030200", "0x068000"
BASE_PACKAGES = {"apt": "2.6.1", "ca-certificates": "1", "e2fsprogs": "1", "python3-venv": "1"}


class BlankMachine:
    """Debian 12 without a GPU, until told otherwise."""

    def __init__(self, folder: Path, driver_libraries: Path) -> None:
        self.root = folder / "root"
        self.libraries = driver_libraries
        self.slept: list[float] = []
        for name in ("etc", "proc", "run", "dev", "bin", "lib", "sys/bus/pci/devices", "sys/class/block"):
            (self.root / name).mkdir(parents=True)
        for name in STUBS:
            (self.root / "bin" / name).write_text(f"#!{sys.executable} -IS\n{_STUB}")
            (self.root / "bin" / name).chmod(0o755)
        self._write_state({"packages": dict(BASE_PACKAGES), "archive": {}, "answers": [], "effects": [], "held": []})
        self.runs("debian", "12")
        self.put("proc/net/route", "Iface Destination Gateway\neth0 00000000 0100000A 0003\n")
        self.put("etc/passwd", "root:x:0:0::/root:/bin/sh\nanna:x:1000:1000::/home/anna:/bin/bash\n")
        self.put("proc/mounts", "/dev/vda1 / ext4 rw 0 0\n")
        self.settings(version="1.2.3")
        self.release_installs()

    # What it is.

    def runs(self, distribution: str, version: str, kernel: str = "") -> None:
        self.put("etc/os-release", f'ID={distribution}\nVERSION_ID="{version}"\n')
        self.says("uname -r", kernel or KERNELS.get(distribution, "5.15.0"))
        self.says("uname -m", "x86_64")

    def has_gpus(self, count: int = 1, kind: str = H100) -> None:
        for _ in range(count):
            number = len(list((self.root / "sys/bus/pci/devices").iterdir()))
            self.put(f"sys/bus/pci/devices/0000:{number:02x}:00.0/vendor", "0x10de\n")
            self.put(f"sys/bus/pci/devices/0000:{number:02x}:00.0/class", f"{kind}\n")

    def has_driver(self, version: str, cuda: int = 0, nvml: int = 0, devices: int | None = None, **more: Any) -> None:
        """Loaded and on disk, with its libraries."""
        for path, text in self.driver_files(version, cuda=cuda, nvml=nvml, devices=devices, **more).items():
            self.put(path, text)
        self.driver_is_on_disk(version)
        for library in self.libraries.iterdir():
            (self.root / "lib" / library.name).unlink(missing_ok=True)
            (self.root / "lib" / library.name).symlink_to(library)

    def driver_files(
        self, version: str, cuda: int = 0, nvml: int = 0, devices: int | None = None, fabric: str = ""
    ) -> dict[str, str]:
        gpus = len(
            [path for path in self.root.glob("sys/bus/pci/devices/*/class") if path.read_text().startswith("0x03")]
        )
        answers = {"nvml": nvml, "driver": version, "cuda": cuda, "devices": gpus if devices is None else devices}
        return {
            "proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX Open Kernel Module  {version}  Release\n",
            "proc/modules": "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 1 nvidia_uvm, Live 0x0\n",
            "answers": "".join(f"{key} {value}\n" for key, value in answers.items())
            + (f"fabric {fabric}\n" if fabric else ""),
        }

    def driver_is_on_disk(self, version: str) -> None:
        self.says("modinfo", version)

    def release_installs(self) -> None:
        """The installer of the bundle does its work, and then finds nothing to do."""
        paths = [f"opt/finetuned/releases/1.2.3-abc/{half}/bin/python" for half in ("daemon", "worker")]
        self.says("install --check", "2 of 7 steps have something to do", 1)
        self.does(
            "install(?! --check)", files=dict.fromkeys(paths, ""), links={"opt/finetuned/current": "releases/1.2.3-abc"}
        )
        self.does("install(?! --check)", answers=[["install --check", 0, "all is in place"]])
        (self.root / "bundle/deploy").mkdir(parents=True)
        (self.root / "bundle/deploy/install").symlink_to(self.root / "bin/install")
        self.put("usr/local/bin/finetunectl", "#!/bin/sh\necho all is well\n", executable=True)

    def settings(self, **values: Any) -> None:
        self.put("etc/finetuned/provision.json", json.dumps({"format": 1, "version": "1.2.3", **values}))

    # What it says and does.

    def says(self, command: str, output: str = "", status: int = 0) -> None:
        """`command`: how a command line begins; a regular expression. The newest word counts."""
        self._change(lambda state: state["answers"].insert(0, [command, status, output]))

    def does(self, command: str, **effect: Any) -> None:
        """What else happens at such a command: files (path: text), links, packages (name: version), answers."""
        self._change(lambda state: state["effects"].append([command, effect]))

    def archive(self, packages: dict[str, str]) -> None:
        """What apt-get can install, with its version."""
        self._change(lambda state: state["archive"].update(packages))

    def packages(self, packages: dict[str, str]) -> None:
        self._change(lambda state: state["packages"].update(packages))

    @property
    def held(self) -> list[str]:
        held: list[str] = self._state()["held"]
        return sorted(held)

    def asked(self, start: str = "") -> list[str]:
        """Command lines in their order, of those that begin so."""
        path = self.root / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(start)]

    def changed(self) -> list[str]:
        """What was asked of it that changes a machine."""
        questions = ("apt-cache", "dpkg --audit", "dpkg-query", "modinfo", "uname", "blkid", "apt-mark showhold")
        questions += ("systemctl is-", "systemctl show", "install --check")
        return [line for line in self.asked() if not line.startswith(questions)]

    def forget(self) -> None:
        (self.root / "asked").unlink(missing_ok=True)

    # The provisioning.

    @property
    def machine(self) -> Machine:
        path = f"{self.root / 'bin'}:/usr/bin:/bin"
        environment = {"PATH": path, "LD_LIBRARY_PATH": str(self.root / "lib"), "PRETEND_ROOT": str(self.root)}
        return Machine(self.root, sleep=self.slept.append, environment=environment)

    def read_settings(self) -> Settings:
        return read_settings(self.machine)

    def baking(self) -> Machine:
        return replace(self.machine, baking=True)

    def provision(self, machine: Machine | None = None) -> int:
        return provision(machine or self.machine, self.read_settings(), self.root / "bundle")

    def check(self) -> int:
        return check(self.machine, self.read_settings(), self.root / "bundle")

    def stamp(self, name: str) -> dict[str, Any]:
        path = self.root / "var/lib/finetuned/provision" / name
        stamp: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return stamp

    def reboots(self, kernel: str = "") -> None:
        if kernel:
            self.says("uname -r", kernel)

    # Its files.

    def put(self, path: str, text: str, executable: bool = False) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(0o755 if executable else 0o644)

    def read(self, path: str) -> str:
        place = self.root / path.lstrip("/")
        return place.read_text() if place.exists() else ""

    def everything(self) -> dict[str, bytes]:
        """Every file's content, but for what the stubs keep for themselves."""
        return {str(path): path.read_bytes() for path in self._own_files()}

    def _own_files(self) -> Iterator[Path]:
        for path in sorted(self.root.rglob("*")):
            if path.is_file() and path.name not in ("asked", "state.json") and "lib" not in path.parts:
                yield path

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.root / "state.json").read_text())
        return state

    def _write_state(self, state: dict[str, Any]) -> None:
        (self.root / "state.json").write_text(json.dumps(state))

    def _change(self, change: Any) -> None:
        state = self._state()
        change(state)
        self._write_state(state)


_STUB = r"""
import json, os, re, sys
root = os.environ["PRETEND_ROOT"]
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
line = " ".join([name, *arguments]).replace("\n", " ")
with open(f"{root}/asked", "a") as file:
    file.write(line + "\n")
with open(f"{root}/state.json") as file:
    state = json.load(file)
output, status = "", 0
words, skip = [], False
for word in arguments:
    if skip or word == "-o":
        skip = not skip
    elif not word.startswith("-"):
        words.append(word)
packages = state["packages"]
if name == "apt-get" and words[:1] == ["install"]:
    for word in words[1:]:
        package, _, version = word.partition("=")
        if package not in state["archive"]:
            output, status = f"E: Unable to locate package {package}", 100
        else:
            packages[package] = version or state["archive"][package]
elif name == "apt-cache":
    known = [word for word in words[1:] if word in state["archive"]]
    output = "\n".join(f" {word} | {state['archive'][word]} | archive" for word in known)
    status = 0 if known or words[:1] == ["madison"] else 100
elif name == "apt-mark" and words[:1] == ["hold"]:
    state["held"] += words[1:]
elif name == "apt-mark":
    output = "\n".join(state["held"])
elif name == "dpkg" and "--install" in arguments:
    packages[words[0].split("/")[-1].split("_")[0]] = "1"
elif name == "dpkg-query":
    patterns = [re.compile(word.replace("*", ".*")) for word in words]
    found = sorted(p for p in packages if any(q.fullmatch(p) for q in patterns))
    form = next(word for word in arguments if word.startswith("-f="))[3:]
    for p in found:
        text = form.replace("${db:Status-Abbrev}", "ii ").replace("${db:Status-Status}", "installed")
        output += text.replace("${Package}", p).replace("${Version}", packages[p]).replace("\\n", "\n")
    status = 0 if found else 1
elif name == "blkid":
    status = 2
elif name == "mount":
    with open(f"{root}/proc/mounts", "a") as file:
        file.write(f"{words[-2]} {words[-1]} ext4 rw 0 0\n")
elif name in ("modinfo", "ubuntu-drivers", "nvidia-smi") or arguments[:1] in (["is-active"], ["is-enabled"]):
    status = 1
for start, said_status, said in state["answers"]:
    if re.match(start, line):
        output, status = said, said_status
        break
if status == 0:
    for start, effect in state["effects"]:
        if not re.match(start, line):
            continue
        for path, text in effect.get("files", {}).items():
            os.makedirs(os.path.dirname(f"{root}/{path}"), exist_ok=True)
            with open(f"{root}/{path}", "w") as file:
                file.write(text)
        for path, target in effect.get("links", {}).items():
            os.makedirs(os.path.dirname(f"{root}/{path}"), exist_ok=True)
            if os.path.lexists(f"{root}/{path}"):
                os.unlink(f"{root}/{path}")
            os.symlink(target, f"{root}/{path}")
        packages.update(effect.get("packages", {}))
        state["answers"] = effect.get("answers", []) + state["answers"]
with open(f"{root}/state.json", "w") as file:
    json.dump(state, file)
if output:
    print(output)
sys.exit(status)
"""

_LIBRARIES = {
    "libnvidia-ml.so.1": r"""
int nvmlInit_v2(void) { return number("nvml"); }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { word("driver", text); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = number("devices"); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(long)(index + 1); return 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned length) { strcpy(text, "NVIDIA H100 80GB HBM3"); return 0; }
struct fabric { unsigned char cluster[16]; unsigned status; unsigned clique; unsigned char state; };
int nvmlDeviceGetGpuFabricInfo(void *device, struct fabric *info) {
    char text[99] = "";
    word("fabric", text);
    if (!*text) return 3;
    info->status = 0;
    info->state = number("fabric");
    return 0;
}
""",
    "libcuda.so.1": r"""
int cuInit(unsigned flags) { return number("cuda"); }
int cuDeviceGetCount(int *count) { *count = number("devices"); return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return number("context"); }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
""",
}
_ANSWERS = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void word(const char *wanted, char *into) {
    char path[4096], key[99], value[99];
    snprintf(path, sizeof path, "%s/answers", getenv("PRETEND_ROOT"));
    FILE *file = fopen(path, "r");
    while (file && fscanf(file, "%98s %98s", key, value) == 2) if (!strcmp(key, wanted)) strcpy(into, value);
    if (file) fclose(file);
}
static int number(const char *wanted) { char text[99] = "0"; word(wanted, text); return atoi(text); }
"""


def compile_driver_libraries(folder: Path) -> Path:
    """libcuda and NVML that answer what PRETEND_ROOT/answers says."""
    for name, code in _LIBRARIES.items():
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / name)]
        subprocess.run(command, input=_ANSWERS + code, text=True, check=True)
    return folder

"""Installing, loading and holding the driver, on stubs: which packages, in which order, and what is never done."""

import pytest
from provision.driver_stage import Driver, kernel_flavour
from provision.holds import BLACKLIST, KERNEL_METAPACKAGE, Holds
from provision.machine import ProvisionFailed
from provision.stages import NeedsReboot

from blank_machine import KERNELS, BlankMachine

DRIVER = "580.105.08"
AWS = KERNELS["ubuntu"]
PREBUILT = {
    f"linux-modules-nvidia-580-server-open-{AWS}": "6.8.0-1021.23",
    "nvidia-headless-no-dkms-580-server-open": f"{DRIVER}-0ubuntu0.24.04.1",
    "nvidia-utils-580-server": f"{DRIVER}-0ubuntu0.24.04.1",
}
FROM_NVIDIA = {"nvidia-driver-pinning-580": "1", "nvidia-open": f"{DRIVER}-1"}


def the_driver(blank: BlankMachine) -> Driver:
    return Driver(blank.machine, blank.read_settings())


def loads_after(blank: BlankMachine, installation: str) -> None:
    """The module is on disk after that command, and in the kernel after modprobe."""
    files = blank.driver_files(DRIVER)
    libraries = {f"lib/{library.name}": str(library) for library in blank.libraries.iterdir()}
    blank.does(installation, answers=[["modinfo", 0, DRIVER]])
    blank.does("modprobe nvidia$", files=files, links=libraries)


def an_ubuntu(blank: BlankMachine) -> BlankMachine:
    blank.runs("ubuntu", "24.04")
    blank.has_gpus()
    blank.archive(PREBUILT)
    loads_after(blank, "apt-get .*install linux-modules-nvidia|apt-get .*linux-modules-nvidia-580")
    return blank


def a_debian(blank: BlankMachine, version: str = "13", kernel: str = "6.12.57+deb13-cloud-amd64") -> BlankMachine:
    blank.runs("debian", version, kernel)
    blank.has_gpus()
    blank.archive({"linux-image-cloud-amd64": "1", "linux-headers-cloud-amd64": "1", **FROM_NVIDIA})
    loads_after(blank, "apt-get .*nvidia-open")
    blank.does("apt-get .*nvidia-open", answers=[["systemctl show .*dkms.service", 0, "loaded"]])
    package = blank.root / "repository" / f"debian{version}" / "x86_64" / "cuda-keyring_1.1-1_all.deb"
    package.parent.mkdir(parents=True)
    package.write_text("a package")
    blank.settings(nvidia_repository=(blank.root / "repository").as_uri())
    return blank


def installed(blank: BlankMachine) -> list[str]:
    """Package names of each apt-get install."""
    options = ("-", "DPkg::", "Acquire::", "Dpkg::", "install", "apt-get")
    lines = [line for line in blank.asked("apt-get") if " install " in line]
    return [" ".join(word for word in line.split() if not word.startswith(options)) for line in lines]


def test_ubuntu_gets_modules_of_exactly_its_kernel_and_they_are_loaded_in_order(blank: BlankMachine):
    stage = the_driver(an_ubuntu(blank))
    assert stage.missing() == ["install driver 580, the distribution's signed modules"]
    stage.act()
    assert installed(blank) == [" ".join(PREBUILT)]
    assert blank.asked("modprobe") == ["modprobe nvidia", "modprobe nvidia_uvm"]
    assert stage.missing() == []
    assert blank.read("etc/modules-load.d/finetuned-nvidia.conf") == "nvidia\nnvidia_uvm\n"


def test_a_second_run_touches_no_driver_that_works(blank: BlankMachine):
    stage = the_driver(an_ubuntu(blank))
    stage.act()
    blank.forget()
    assert stage.missing() == []
    assert blank.changed() == []


def test_debian_takes_pinned_packages_of_nvidia_and_compiles(blank: BlankMachine):
    stage = the_driver(a_debian(blank))
    stage.act()
    assert installed(blank) == [
        "linux-image-cloud-amd64 linux-headers-cloud-amd64",
        "nvidia-driver-pinning-580",
        "nvidia-open",
    ]
    assert stage.missing() == []


def test_dkms_is_not_started_at_boot_where_it_would_keep_cloud_init_from_it(blank: BlankMachine):
    the_driver(a_debian(blank)).act()
    assert "systemctl disable dkms.service" in blank.asked("systemctl")


def test_debian_boots_its_newest_kernel_before_the_driver_and_only_once(blank: BlankMachine):
    a_debian(blank, "12", "6.1.0-40-cloud-amd64")
    blank.does("apt-get .*linux-image-cloud-amd64", links={"vmlinuz": "boot/vmlinuz-6.1.0-41-cloud-amd64"})
    with pytest.raises(NeedsReboot, match=r"6\.1\.0-41-cloud-amd64"):
        the_driver(blank).act()
    assert "nvidia-open" not in installed(blank)
    blank.reboots("6.1.0-41-cloud-amd64")
    the_driver(blank).act()
    assert installed(blank)[-1] == "nvidia-open"


def test_ubuntu_without_prebuilt_modules_compiles_with_the_headers_of_its_kernel(blank: BlankMachine):
    a_debian(blank)
    blank.runs("ubuntu", "26.04", "7.0.0-1-odd")
    (blank.root / "repository/debian13").rename(blank.root / "repository/ubuntu2604")
    blank.archive({"linux-headers-7.0.0-1-odd": "1"})
    the_driver(blank).act()
    assert installed(blank)[0] == "linux-headers-7.0.0-1-odd"


def test_apt_is_asked_patiently_and_no_lock_is_taken_away(blank: BlankMachine):
    the_driver(an_ubuntu(blank)).act()
    assert all("DPkg::Lock::Timeout=600" in line for line in blank.asked("apt-get"))
    assert not any(" rm " in f" {line} " or "lock-frontend" in line or "kill" in line for line in blank.asked())


def test_a_lock_that_somebody_holds_is_waited_for(blank: BlankMachine):
    an_ubuntu(blank)
    blank.says("apt-get", "E: Could not get lock /var/lib/dpkg/lock-frontend", 100)
    with pytest.raises(ProvisionFailed, match="Could not get lock"):
        the_driver(blank).act()
    assert blank.slept == [5, 15, 45, 90]


def test_a_module_that_loads_at_the_second_try_is_good(blank: BlankMachine):
    an_ubuntu(blank)
    blank.says("modprobe nvidia_uvm", "modprobe: ERROR: could not insert 'nvidia_uvm': No such device", 1)
    with pytest.raises(ProvisionFailed, match="No such device"):
        the_driver(blank).act()
    assert blank.asked("modprobe") == ["modprobe nvidia", *["modprobe nvidia_uvm"] * 3]
    assert blank.slept == [2, 5]


@pytest.mark.parametrize(("said", "hint"), [
    ("could not insert 'nvidia': Key was rejected by service", "Secure Boot off"),
    ("could not insert 'nvidia': Operation not permitted", "lockdown none [integrity] confidentiality"),
    ("could not insert 'nvidia': No such device", "does not know this GPU"),
    ("FATAL: Module nvidia not found in directory", "make.log"),
])  # fmt: skip
def test_a_module_that_does_not_load_is_told_with_its_cause(blank: BlankMachine, said: str, hint: str):
    an_ubuntu(blank)
    blank.put("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
    blank.says("modprobe nvidia$", f"modprobe: {said}", 1)
    with pytest.raises(ProvisionFailed) as failed:
        the_driver(blank).act()
    assert hint in failed.value.hint


def test_an_installation_that_did_not_help_is_not_repeated_for_ever(blank: BlankMachine):
    an_ubuntu(blank)
    blank.says("modinfo", "", 1)
    blank.does("apt-get .*linux-modules", answers=[["modinfo", 1, ""]])
    with pytest.raises(ProvisionFailed, match="it did not help"):
        the_driver(blank).act()
    assert len(installed(blank)) == 1


def test_package_lists_are_fetched_before_signed_modules_are_said_to_be_missing(blank: BlankMachine):
    """A fresh image has none; the decision made without them would compile."""
    an_ubuntu(blank)
    blank.says("apt-cache show", "", 100)
    blank.does("apt-get .*update", answers=[["apt-cache show", 0, "Package: it"]])
    the_driver(blank).act()
    assert installed(blank) == [" ".join(PREBUILT)]


def test_a_persistence_daemon_is_switched_on_where_the_packages_brought_one(blank: BlankMachine):
    an_ubuntu(blank)
    blank.says("systemctl show .*nvidia-persistenced", "loaded")
    the_driver(blank).act()
    assert "systemctl enable nvidia-persistenced.service" in blank.asked("systemctl")


@pytest.mark.parametrize(("kernel", "flavour"), [
    ("6.1.0-41-cloud-amd64", "cloud-amd64"),
    ("6.12.57+deb13-amd64", "amd64"),
    ("6.12.57+deb13-cloud-arm64", "cloud-arm64"),
])  # fmt: skip
def test_the_flavour_of_a_debian_kernel_is_in_its_name(kernel: str, flavour: str):
    assert kernel_flavour(kernel) == flavour


# Holds.


def the_holds(blank: BlankMachine) -> Holds:
    return Holds(blank.machine, blank.read_settings())


def test_resolved_driver_packages_and_kernel_metapackages_are_held(blank: BlankMachine):
    blank.has_gpus()
    blank.packages({
        **PREBUILT, "libnvidia-compute-580-server": "1", "libcuda1": "1", "linux-aws": "1", "linux-image-aws": "1",
        f"linux-image-{AWS}": "1", "linux-libc-dev": "1", "linux-base": "1", "libc6": "1",
    })  # fmt: skip
    stage = the_holds(blank)
    assert stage.missing()[0].startswith("packages to hold: ")
    stage.act()
    assert blank.held == sorted([*PREBUILT, "libnvidia-compute-580-server", "libcuda1", "linux-aws", "linux-image-aws"])
    assert stage.missing() == []


def test_unattended_upgrades_leave_driver_and_kernel_alone(blank: BlankMachine):
    blank.has_gpus()
    the_holds(blank).act()
    text = blank.read(BLACKLIST)
    assert all(f'"{name}";' in text for name in ("nvidia-", "libnvidia-", "linux-", "cuda-"))


def test_a_restart_of_services_after_upgrades_leaves_ours_alone(blank: BlankMachine):
    blank.has_gpus()
    the_holds(blank).act()
    assert blank.read("etc/needrestart/conf.d/52-finetuned.conf") == ""
    (blank.root / "etc/needrestart").mkdir()
    assert the_holds(blank).missing() == ["/etc/needrestart/conf.d/52-finetuned.conf to write"]
    the_holds(blank).act()
    assert "qr(^finetuned)} = 0" in blank.read("etc/needrestart/conf.d/52-finetuned.conf")


def test_a_machine_without_a_gpu_holds_nothing(blank: BlankMachine):
    blank.packages({"linux-image-cloud-amd64": "1"})
    assert the_holds(blank).missing() == []


@pytest.mark.parametrize("name", [
    *("linux-generic-hwe-24.04", "linux-azure-lts-24.04", "linux-gcp", "linux-image-virtual", "linux-image-amd64"),
    *("linux-headers-cloud-amd64", "linux-modules-nvidia-580-server-open-aws"),
])  # fmt: skip
def test_a_metapackage_of_kernels_is_known_by_its_name(name: str):
    assert KERNEL_METAPACKAGE.fullmatch(name)


@pytest.mark.parametrize("name", ["linux-image-6.8.0-1021-aws", "linux-libc-dev", "linux-base", "linux-firmware"])
def test_other_packages_of_linux_are_no_metapackages(name: str):
    assert not KERNEL_METAPACKAGE.fullmatch(name)

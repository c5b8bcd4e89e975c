"""Where everything lies on a server, below a root that is another directory only in tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Places:
    root: Path = Path("/")

    @property
    def home(self) -> Path:
        return self.root / "opt/finetuned"

    @property
    def releases(self) -> Path:
        return self.home / "releases"

    @property
    def current(self) -> Path:
        return self.home / "current"

    @property
    def previous(self) -> Path:
        return self.home / "previous"

    @property
    def lock(self) -> Path:
        return self.home / ".install.lock"

    @property
    def restart_due(self) -> Path:
        """There from before the first change to what runs until the new release has proved healthy, or was undone."""
        return self.home / ".restart-due"

    @property
    def installed_files(self) -> Path:
        return self.home / "installed.json"

    @property
    def pip_cache(self) -> Path:
        """Kept between runs: an upgrade or a second try downloads only what changed."""
        return self.home / "pip-cache"

    @property
    def command(self) -> Path:
        return self.root / "usr/local/bin/finetunectl"

    @property
    def units(self) -> Path:
        """Not /etc: what an admin overrides there survives upgrades."""
        return self.root / "usr/local/lib/systemd/system"

    @property
    def own_units(self) -> Path:
        """For what depends on this one machine and no package can bring."""
        return self.root / "usr/local/lib/systemd/system"

    @property
    def sysusers(self) -> Path:
        return self.root / "usr/local/lib/sysusers.d/finetuned.conf"

    @property
    def tmpfiles(self) -> Path:
        return self.root / "usr/local/lib/tmpfiles.d/finetuned.conf"

    @property
    def polkit_rules(self) -> Path:
        return self.root / "etc/polkit-1/rules.d"

    @property
    def journald(self) -> Path:
        return self.root / "etc/systemd/journald.conf.d/finetuned.conf"

    @property
    def catalog(self) -> Path:
        return self.root / "usr/lib/systemd/catalog"

    @property
    def settings(self) -> Path:
        return self.root / "etc/finetuned"

    @property
    def credentials(self) -> Path:
        return self.settings / "credentials"

    @property
    def provisioning_gate(self) -> Path:
        """Where cloud-init provisioned the machine: no daemon without a stamp in `state`."""
        return self.root / "etc/systemd/system/finetuned.service.d/10-provisioned.conf"

    @property
    def spool(self) -> Path:
        return self.root / "var/spool/finetuned"

    @property
    def state(self) -> Path:
        return self.root / "var/lib/finetuned"

    @property
    def cache(self) -> Path:
        return self.root / "var/cache/finetuned"

    @property
    def files_of_people(self) -> Path:
        return self.root / "srv/finetuned"


class PlacesOfPackage(Places):
    """Where the Debian package puts the same: below /usr, for /usr/local and /etc are the admin's."""

    @property
    def command(self) -> Path:
        return self.root / "usr/bin/finetunectl"

    @property
    def units(self) -> Path:
        return self.root / "usr/lib/systemd/system"

    @property
    def sysusers(self) -> Path:
        return self.root / "usr/lib/sysusers.d/finetuned.conf"

    @property
    def tmpfiles(self) -> Path:
        return self.root / "usr/lib/tmpfiles.d/finetuned.conf"

    @property
    def polkit_rules(self) -> Path:
        return self.root / "usr/share/polkit-1/rules.d"

    @property
    def journald(self) -> Path:
        return self.root / "usr/lib/systemd/journald.conf.d/finetuned.conf"

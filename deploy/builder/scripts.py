"""The maintainer scripts of the Debian package."""

_PREINST = """\
#!/bin/sh
set -e
if [ -e /opt/finetuned/installed.json ] && [ ! -e /opt/finetuned/.packaged ]; then
    echo "finetuned-daemon: finetuned was installed here by deploy/install; first take that off again:" >&2
    echo "    sudo /opt/finetuned/current/deploy/install --uninstall      (jobs, settings and models are kept)" >&2
    exit 1
fi
"""

_POSTINST = """\
#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
touch /opt/finetuned/.packaged
systemd-sysusers finetuned.conf
systemd-tmpfiles --create finetuned.conf || true
journalctl --update-catalog || true
deb-systemd-helper unmask finetuned.service >/dev/null || true
if deb-systemd-helper --quiet was-enabled finetuned.service; then
    deb-systemd-helper enable finetuned.service >/dev/null || true
else
    deb-systemd-helper update-state finetuned.service >/dev/null || true
fi
if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || true
fi
# Neither started nor restarted here: a daemon without a worker, or with bad settings, helps nobody, and the next line
# says what does. Jobs that run go on with the release that they were started with.
if [ ! -e /opt/finetuned/current/worker.json ]; then
    echo "finetuned-daemon: enabled; it starts once the worker is there: sudo /opt/finetuned/current/deploy/install"
fi
"""

_PRERM = """\
#!/bin/sh
set -e
[ "$1" = remove ] || exit 0
if [ -d /run/systemd/system ]; then
    running=$(systemctl list-units --plain --no-legend --state=active,activating,deactivating \\
        'finetuned-prepare@*' 'finetuned-rehearse@*' 'finetuned-train@*' 'finetuned-deliver@*')
    if [ -n "$running" ]; then
        echo "finetuned-daemon: not removed, for jobs are running; hold or cancel them first:" >&2
        echo "$running" >&2
        exit 1
    fi
    deb-systemd-invoke stop finetuned.service || true
fi
"""

_POSTRM = """\
#!/bin/sh
set -e
case "$1" in
remove)
    # The worker and what came with it, built here by deploy/install.
    rm -rf /opt/finetuned/releases /opt/finetuned/pip-cache
    rm -f /opt/finetuned/installed.json /opt/finetuned/.packaged /opt/finetuned/.install.lock
    rm -f /usr/local/lib/systemd/system/finetuned-*@.service.d/credential-*.conf
    rmdir --ignore-fail-on-non-empty /opt/finetuned 2>/dev/null || true
    deb-systemd-helper mask finetuned.service >/dev/null || true
    if [ -d /run/systemd/system ]; then
        systemctl --system daemon-reload >/dev/null || true
    fi
    ;;
purge)
    deb-systemd-helper purge finetuned.service >/dev/null || true
    deb-systemd-helper unmask finetuned.service >/dev/null || true
    rm -rf /var/cache/finetuned
    echo "finetuned-daemon: kept: /etc/finetuned, /var/lib/finetuned, /var/spool/finetuned, /srv/finetuned, the user"
    ;;
esac
"""

MAINTAINER_SCRIPTS = {"preinst": _PREINST, "postinst": _POSTINST, "prerm": _PRERM, "postrm": _POSTRM}

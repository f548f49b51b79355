set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/resolve /run/systemd/resolved.conf.d
cp "$1" /run/systemd/resolved.conf.d/test.conf
{ cat /etc/passwd; echo systemd-resolve:x:64999:64999::/:/bin/false; } > /run/passwd
{ cat /etc/group; echo systemd-resolve:x:64999:; } > /run/group
chown 64999:64999 /run/systemd/resolve
mount --bind /run/passwd /etc/passwd
mount --bind /run/group /etc/group
mount --bind "$2" /etc/resolv.conf
[ ! -e /etc/nsswitch.conf ] || mount --bind "$3" /etc/nsswitch.conf
SYSTEMD_LOG_LEVEL=warning "$4" >&2 &
for i in $(seq 100); do ss -lnu | grep -q 127.0.0.53%lo:53 && break; sleep 0.1; done
shift 4
"$@"
kill $!

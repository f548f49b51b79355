set -e
mount --make-rprivate /
resolv=$(cat "$DIR/resolv.conf")
touch /run/xtables.lock "$DIR/xtables.lock"
mount --bind /run/xtables.lock "$DIR/xtables.lock"
mount -t tmpfs tmpfs /etc
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
touch /run/xtables.lock
mount --bind "$DIR/xtables.lock" /run/xtables.lock
mkdir /etc/coredns /etc/kube-dns
mount --bind "$DIR/coredns" /etc/coredns
mount --bind "$DIR/kube-dns" /etc/kube-dns
echo "$resolv" > /etc/resolv.conf
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
exec setpriv --bounding-set=-all,+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,+setuid,+setfcap,+setpcap,+net_bind_service,+sys_chroot,+kill,+audit_write,+net_admin -- "$@"

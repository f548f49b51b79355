#!/bin/sh
# Makes these the zone's name servers, with their addresses: name-servers.sh ns1=192.0.2.10 ns2=198.51.100.10
set -eu
[ $# -gt 0 ] || { echo "usage: name-servers.sh LABEL=ADDRESS..." >&2; exit 2; }
cd "$FOLDER/$ZONE"
{
  echo "server 127.0.0.1 $PORT"
  echo "zone $ZONE."
  for server in "$@" $(cat name-servers); do # the previous name servers too, so that their addresses go
    echo "update delete ${server%%=*}.$ZONE. A"
    echo "update delete ${server%%=*}.$ZONE. AAAA"
  done
  for server in "$@"; do
    case $server in *:*) type=AAAA ;; *) type=A ;; esac
    echo "update add $ZONE. 300 NS ${server%%=*}.$ZONE."
    echo "update add ${server%%=*}.$ZONE. 300 $type ${server#*=}"
  done
  for server in $(cat name-servers); do
    case " $*" in *" ${server%%=*}="*) ;; *) echo "update delete $ZONE. NS ${server%%=*}.$ZONE." ;; esac
  done
  echo send
} | nsupdate -k operator.key
echo "$*" >name-servers

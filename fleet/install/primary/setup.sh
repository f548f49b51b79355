#!/bin/sh
# Writes keys, zone and configuration for BIND. Keys that exist stay, and so does the zone with all that clusters wrote.
set -eu
umask 077
mkdir -p "$FOLDER/$ZONE"
cd "$FOLDER/$ZONE"

# Each key goes into a file for BIND, and as the Secret that a cluster or an edge reads it from.
for id in operator edge $CLUSTERS; do
  secret_name=shared-key namespace=neardns-zones
  case $id in
  operator) key=operator.$ZONE ;;
  edge) key=edge.$ZONE secret_name=neardns-edge-key namespace=kube-system ;;
  *) key=$id._neardns.$ZONE ;;
  esac
  [ ! -s "$id.key" ] || continue
  secret=$(head -c 32 /dev/urandom | base64)
  cat >"$id.yaml" <<END
apiVersion: v1
kind: Secret
metadata: {name: $secret_name, namespace: $namespace}
stringData: {name: $key, algorithm: hmac-sha256, secret: "$secret"}
END
  echo "key \"$key\" { algorithm hmac-sha256; secret \"$secret\"; };" >new
  mv new "$id.key" # last, so that a key has its Secret
done

if [ ! -s zone ]; then
  {
    first=${NAME_SERVERS%%=*}
    echo "\$ORIGIN $ZONE."
    echo "\$TTL 300"
    echo "@ SOA $first hostmaster 1 3600 600 604800 60"
    for server in $NAME_SERVERS; do
      case $server in *:*) type=AAAA ;; *) type=A ;; esac
      echo "@ NS ${server%%=*}"
      echo "${server%%=*} $type ${server#*=}"
    done
  } >new
  echo "$NAME_SERVERS" >name-servers
  mv new zone
fi

keys=
for id in operator edge $CLUSTERS; do
  keys="$keys include \"$FOLDER/$ZONE/$id.key\";"
done
transfer="key \"operator.$ZONE\"; key \"edge.$ZONE\";"
for id in $CLUSTERS; do transfer="$transfer key \"$id._neardns.$ZONE\";"; done
notify=
for address in $NOTIFY; do notify="$notify $address port 53;"; done
cat >"$FOLDER/named.conf" <<END
options {
    directory "$FOLDER/$ZONE";
    listen-on port $PORT { any; };
    listen-on-v6 port $PORT { any; };
    pid-file none;
    session-keyfile none;
    version none;
    recursion no;
    dnssec-validation no;
    transfers-out 100;
    max-records-per-type 0;
};
controls { };
$keys
zone "$ZONE" {
    type primary;
    file "zone";
    notify explicit;
    notify-delay 0;
    also-notify {$notify };
    allow-transfer { $transfer };
    update-policy {
        grant operator.$ZONE zonesub ANY;
        // A cluster's key is named C._neardns.$ZONE: it writes below its own name and in the shared part.
        grant *._neardns.$ZONE selfsub . TXT;
        grant *._neardns.$ZONE subdomain _shared._neardns.$ZONE TXT;
        deny *._neardns.$ZONE subdomain _neardns.$ZONE ANY;
        grant *._neardns.$ZONE zonesub A AAAA CNAME;
    };
};
END

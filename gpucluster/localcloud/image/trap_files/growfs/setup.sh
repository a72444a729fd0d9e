mkdir -p /var/lib/localcloud
echo 36 > /var/lib/localcloud/root-gb

systemctl enable --quiet oci-hostname.service

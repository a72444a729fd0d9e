systemctl enable --quiet chrony.service

systemctl enable --quiet netfilter-persistent.service

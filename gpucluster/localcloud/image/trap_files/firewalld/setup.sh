systemctl enable --quiet firewalld.service

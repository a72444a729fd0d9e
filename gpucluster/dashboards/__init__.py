"""What operators look at: Grafana's dashboards, and the page of the cluster's state that needs no Grafana. Pure.

Imports `pages` and folders below.
"""

"""The report of a job: what it used, what its network counted, and what stands out. Pure.

`facts` reads what the controller knows, `queries` makes the questions for Prometheus and reads the answers, `build`
computes the report, `summary` states in sentences what stands out, `text` and `page` show it.
"""

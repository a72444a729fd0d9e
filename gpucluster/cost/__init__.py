"""What instances cost, and for whom: intervals of instances and intervals of jobs become money. Pure.

    shares = attribute(hosts, runs, price_of, cuts=days.cuts)
    report = summarize(shares, "account")

Seconds are of the epoch; prices are for an hour. Nothing here knows Slurm's commands, files or a cloud.
"""

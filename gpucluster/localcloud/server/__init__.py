"""The server process: the web application, the forwarder that offers the API to instances, and the recovery at a start.

May import every folder of the local cloud except `provider`. No other folder imports this one.
"""

"""Who asks, and whether they may: credentials, request signatures, policies and dynamic groups. May import `state` and below."""

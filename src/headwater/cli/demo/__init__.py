"""``headwater demo``: the log at work, with real crashes, and every claim checked."""

"""Timed jobs: functions that run at times of a calendar, once among any number of runners."""

"""Rocket Rides: an application that shares what happens in it through one log.

python -m examples.rocket_rides

An API takes rides, a streamer moves them from the database to the log, two consumers add up the
distances, each for itself. Meanwhile processes are killed, batches sent twice, transactions held
up, and in the end all totals must be the same to the millimetre.
"""

"""A deterministic simulation of Holdfast: real workers, journals and store decisions in virtual time, with faults.

One seed names one scenario, which is data. The same scenario always gives the same trace, byte for byte.
"""

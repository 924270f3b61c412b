"""Verify and repair: is the target what the source says, below the watermark?"""

"""What a figure was measured on and with."""

"""Result files: their schema, how they are written once, retracted and verified."""

"""Evaluation of the finalists: races end to end, plausibility of the speed-up, and the choice of the winner."""

"""Audits of the prover and of the database: mutants, surveys, weakest preconditions, proofs from axioms."""

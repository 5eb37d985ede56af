"""Operations as declarations: what a pass reads, computes and yields."""

"""Where drafters are made and judged: record, train, evaluate."""

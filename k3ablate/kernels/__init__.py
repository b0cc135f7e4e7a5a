"""Operations that torch runs as dozens of small ones: each with a plain definition, fast forms and one dispatch."""

"""The sizes of models as their papers and checkpoints have them."""

WIDTH = 768
PAPERS: dict[str, tuple[int, str]] = {
    "gpt1": (116_534_784, "checkpoint openai-gpt; 117M in Radford et al. 2019, table 2"),
    "gpt2-124m": (124_439_808, "checkpoint gpt2"),
    "gpt2-355m": (354_823_168, "checkpoint gpt2-medium; 345M in Radford et al. 2019, table 2, corrected later"),
    "gpt2-774m": (774_030_080, "checkpoint gpt2-large; 762M in the same table"),
    "gpt2-1.5b": (1_557_611_200, "checkpoint gpt2-xl; 1542M in the same table"),
    "bert-base": (110_106_428, "checkpoint bert-base-uncased with its heads; 110M in Devlin et al. 2019, section 3"),
    "bert-large": (336_226_108, "checkpoint bert-large-uncased with its heads; 340M in the same section"),
    "roberta-base": (124_697_433 - 3 * WIDTH, "checkpoint roberta-base with its head, less 2 positions and a segment"),
    "t5-small": (60_506_624, "checkpoint t5-small; about 60 million in Raffel et al. 2020, section 3.7"),
    "prefix-lm": (109_628_544, "P of Raffel et al. 2020, section 3.2.2: half of 220 million"),
    "transformer-base": (63_082_496, "65 million in Vaswani et al. 2017, table 3"),
}

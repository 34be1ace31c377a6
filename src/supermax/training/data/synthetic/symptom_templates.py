"""Templates of the synthetic posts' sentences about symptoms.

A symptom has acts in (past, base) form: "lay awake", "lie awake". Frames decide who does it, and
whether it is asserted or negated. Pairs of frames hold the same words in another order, so that a
bag of words cannot distinguish them.
"""

from __future__ import annotations

from dataclasses import dataclass

Frames = tuple[str, ...]


@dataclass(frozen=True)
class Wording:
    shown: tuple[tuple[str, str], ...]
    """Acts that show it, in past and base form."""
    well: tuple[str, ...]
    """Acts that contradict it."""
    vague: tuple[str, ...]
    """Acts that may or may not show it."""
    weight: int = 1
    """Relative frequency among the annotations."""


def _felt(*feelings: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"felt {feeling}", f"feel {feeling}") for feeling in feelings)


WORDINGS = {
    "DEPRESSED_MOOD": Wording(
        (
            *_felt("sad", "empty inside", "hopeless", "low from morning to evening", "gloomy"),
            ("cried without a reason", "cry without a reason"),
            ("came close to tears", "come close to tears"),
        ),
        ("felt cheerful", "felt hopeful and light", "woke up in good spirits"),
        ("had one of those grey days", "listened to slow songs"),
        4,
    ),
    "ANHEDONIA": Wording(
        (
            ("lost interest in music", "lose interest in music"),
            ("lost all joy in reading", "lose all joy in reading"),
            ("lost the pleasure in cooking", "lose the pleasure in cooking"),
            ("found old hobbies dull", "find old hobbies dull"),
            ("stopped caring about hobbies", "stop caring about hobbies"),
            ("sat through films without pleasure", "sit through films without pleasure"),
        ),
        ("enjoyed music a great deal", "took delight in reading", "looked forward to painting"),
        ("left the guitar in its case", "turned down the trip"),
        2,
    ),
    "APPETITE_CHANGE": Wording(
        (
            ("lost all appetite", "lose all appetite"),
            ("ate far too little", "eat far too little"),
            ("skipped meals and lost weight", "skip meals and lose weight"),
            ("ate far more than before", "eat far more than before"),
            ("gained weight without meaning to", "gain weight without meaning to"),
            ("pushed full plates away", "push full plates away"),
        ),
        ("ate regular meals", "ate with a good appetite", "kept a steady weight"),
        ("left the table early", "had an odd week with food"),
    ),
    "SLEEP_ISSUES": Wording(
        (
            ("lay awake until morning", "lie awake until morning"),
            ("slept badly", "sleep badly"),
            ("woke at three and stayed awake", "wake at three and stay awake"),
            ("slept only a few hours", "sleep only a few hours"),
            ("slept through half the day", "sleep through half the day"),
            ("struggled to fall asleep", "struggle to fall asleep"),
        ),
        ("slept soundly", "slept eight hours without waking", "fell asleep at once"),
        ("looked at the clock late at night", "went to bed very late"),
        2,
    ),
    "PSYCHOMOTOR": Wording(
        (
            ("paced up and down without rest", "pace up and down without rest"),
            ("fidgeted all day long", "fidget all day long"),
            ("moved and spoke far more slowly", "move and speak far more slowly"),
            ("struggled to sit still", "struggle to sit still"),
            *_felt("slowed down in every movement", "restless in both hands"),
        ),
        ("sat still with ease", "moved about calmly", "spoke at an easy pace"),
        ("walked around the room a lot", "spoke rather quietly"),
    ),
    "FATIGUE": Wording(
        (
            *_felt("worn out", "tired after the smallest task", "exhausted"),
            ("ran out of energy by noon", "run out of energy by noon"),
            ("dragged along without strength", "drag along without strength"),
            ("lacked energy for simple chores", "lack energy for simple chores"),
        ),
        ("had plenty of energy", "felt rested and strong", "finished the chores with ease"),
        ("took it slowly in the afternoon", "sat down for a while"),
        2,
    ),
    "WORTHLESSNESS": Wording(
        (
            *_felt("worthless", "guilty about everything", "like a burden", "like a failure"),
            *_felt("useless", "ashamed of small mistakes"),
            ("took the blame for everything", "take the blame for everything"),
        ),
        ("felt valued", "felt proud of small steps", "felt at peace with old mistakes"),
        ("apologised more than once", "looked back on old choices"),
        4,
    ),
    "COGNITIVE_ISSUES": Wording(
        (
            ("struggled to concentrate", "struggle to concentrate"),
            ("lost the thread of every page", "lose the thread of every page"),
            ("forgot what was said a minute before", "forget what was said a minute before"),
            ("struggled to make simple decisions", "struggle to make simple decisions"),
            ("read the same line over and over", "read the same line over and over"),
            *_felt("foggy in the head"),
        ),
        ("concentrated with ease", "followed every page", "decided things clearly"),
        ("took a while to answer", "put the book away early"),
    ),
    "SUICIDAL_THOUGHTS": Wording(
        (
            ("had thoughts of ending life", "have thoughts of ending life"),
            ("wished to be gone from life", "wish to be gone from life"),
            ("thought about death often", "think about death often"),
            ("doubted that life was worth it", "doubt that life was worth it"),
            ("lost the wish to live", "lose the wish to live"),
        ),
        ("wanted to live", "felt glad to be alive", "held on to life"),
        ("thought about what it all means", "thought of people long gone"),
        2,
    ),
    "SPECIAL_CASE": Wording(
        (
            ("worried without end", "worry without end"),
            ("withdrew from all company", "withdraw from all company"),
            ("snapped at everyone", "snap at everyone"),
            ("had aches without a cause", "have aches without a cause"),
            ("panicked over small errands", "panic over small errands"),
            *_felt("numb and far away"),
        ),
        ("met friends gladly", "stayed calm in the crowd", "answered every call patiently"),
        ("stayed at home on Sunday", "kept to the kitchen"),
    ),
}

PRESENT_PLAIN: Frames = ("I {past} {when}.", "{When} I {past}.", "To be honest, I {past} {when}.")
PRESENT_HARD: Frames = (
    "{Other} noticed that I {past} {when}.",
    "I did not tell {other} that I {past} {when}.",
    "Unlike {other}, I {past} {when}.",
    "Nobody knows that I {past} {when}.",
    "I never said it to {other}, but I {past} {when}.",
)
ABSENT_WELL: Frames = ("I {well} {when}.", "{When} I {well}.")
ABSENT_PLAIN: Frames = (
    "I did not {base} {when}.",
    "{When} I did not {base}.",
    "I never {past} {when}.",
)
ABSENT_HARD: Frames = (
    "I noticed that {other} {past} {when}.",
    "{Other} {past} {when}.",
    "Unlike me, {other} {past} {when}.",
    "{Other} did not tell me before that she {past} {when}.",
    "I said it to {other}: I never {past} {when}.",
    "{Other} thought that I {past} {when}, but I did not.",
)
VAGUE = ("I {vague} {when}.", "{When} I {vague}.", "{Other} noticed that I {vague} {when}.")

WHENS = (
    "this spring",
    "last week",
    "on most days",
    "for many weeks",
    "all month",
    "in the past weeks",
    "over the winter",
    "after the holidays",
)
OTHERS = ("my sister", "my mother", "my aunt", "a friend", "my neighbour", "my cousin")

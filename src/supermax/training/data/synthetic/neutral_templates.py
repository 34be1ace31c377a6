"""Templates of neutral sentences that fill the synthetic posts and mention no symptom."""

from __future__ import annotations

FILLERS = (
    "I {went} to the {place} in the {weather}.",
    "{Other} {went} to the {place} with me {when}.",
    "{When} I {went} past the {place}.",
    "The {place} was {state} {when}.",
    "I did not go to the {place} {when}.",
    "{Other} told me about the {thing} from the {place}.",
    "I bought a {colour} {thing} at the {place}.",
    "The {thing} on the shelf is {colour}, and {other} gave it to me.",
    "I never liked the {colour} {thing}, but {other} did.",
    "There was {weather} {when}, and the {place} was {state}.",
    "{Other} noticed that the {place} was {state}.",
    "I noticed that {other} had a {colour} {thing}.",
    "Nobody knows where the {thing} came from.",
    "Unlike {other}, I take the {way} to the {place}.",
    "I read about the {place} {when}.",
    "We talked about the {thing} and the {weather}.",
    "{When} the {way} to the {place} was late.",
    "Does anyone here know a good {thing}?",
    "Thank you for reading this.",
    "I write this from the {place}, with a {thing} beside me.",
    "It took the {way} twenty minutes to reach the {place}.",
    "Somebody painted the door of the {place} {colour}.",
    "{Other} mended the {colour} {thing} {when}.",
    "I put the {thing} next to the window.",
)
SLOTS = {
    "went": ("walked", "cycled", "drove", "strolled", "hurried"),
    "place": ("library", "market", "garden", "station", "museum", "river", "bakery", "harbour"),
    "weather": ("rain", "sunshine", "wind", "fog", "snow", "drizzle"),
    "state": ("crowded", "closed", "quiet", "open until six", "full of visitors"),
    "thing": ("lamp", "kettle", "map", "jacket", "radio", "basket", "puzzle", "teapot"),
    "colour": ("red", "green", "yellow", "blue", "striped", "white"),
    "way": ("bus", "tram", "train", "ferry"),
}

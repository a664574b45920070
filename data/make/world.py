"""The small world in which the tales happen: who lives there, what they own, and what follows from what.

In the strings, <x|y> is a choice, {a}, {b} and {c} are characters, {a.he}, {a.him} and {a.his} their pronouns.
"""

WOMEN = "Anna Marta Elsa Rosa Clara Lena Ida Greta Nora Vera Agnes Hanna Edith Sofia Alma Tilda"
MEN = "Tom Jon Peter Hugo Otto Emil Nils Karl Paul Felix Simon Jacob Martin Walter Bruno Oskar"

SKIES = {  # season: weather: what one sees of it
    "spring": {
        "rainy": "It had rained all night, and the paths were soft with mud.",
        "mild": "The first flowers were open, and the bees were out again.",
        "windy": "The wind chased small clouds across the sky.",
    },
    "summer": {
        "hot": "Even the dogs lay still in the shade.",
        "dry": "No rain had fallen for weeks, and the grass was yellow.",
        "bright": "The hay was cut, and the whole valley smelled of it.",
    },
    "autumn": {
        "foggy": "The fog was so thick that the church could not be seen from the bridge.",
        "windy": "The wind tore the last leaves from the trees.",
        "rainy": "Water ran down every roof and filled every ditch.",
    },
    "winter": {
        "snowy": "Snow lay on the roofs, and every footstep could be seen in it.",
        "frosty": "The pond was frozen, and smoke rose straight from the chimneys.",
        "grey": "The sky hung low, and the days were short.",
    },
}

GOODS = {  # trade: what that person makes, and why somebody might need it
    "baker": ("a loaf of bread", "there was nothing left to eat in the house"),
    "miller": ("a sack of flour", "there was a birthday cake to bake"),
    "weaver": ("a wool blanket", "the nights had grown cold"),
    "potter": ("a clay jug", "the old jug had cracked from top to bottom"),
    "smith": ("a sharp knife", "the old knife was eaten away by rust"),
    "beekeeper": ("a jar of honey", "a cough had come and would not go away"),
    "carpenter": ("a wooden stool", "the old stool had lost a leg"),
    "cobbler": ("a pair of boots", "the old boots let in the water"),
    "shepherd": ("a round of cheese", "guests were coming to supper"),
    "candlemaker": ("a box of candles", "the evenings had grown dark"),
    "tailor": ("a warm coat", "the old coat was more holes than cloth"),
    "farmer": ("a sack of potatoes", "the cellar was empty"),
    "fisher": ("a basket of fish", "the whole family was tired of eating cabbage"),
    "basket maker": ("a strong basket", "the apples were ripe and had to be carried home"),
}

CHORES = [
    "<chopped wood|split logs> until the pile reached the window",
    "filled the water barrel, one bucket after another",
    "swept the floor and washed all the windows",
    "mended the gap in the fence",
    "minded the shop for an hour",
    "fed the hens and cleaned out their house",
    "carried twelve heavy stones out of the field",
]

TOOLS = [  # tool, why it is needed, what is done with it, what becomes of it when nobody looks after it
    ("ladder", "the roof leaked", "mended the roof", "one of its rungs had snapped"),
    ("saw", "a fallen tree lay across the path", "cut up the tree", "its teeth were red with rust"),
    ("cart", "the potatoes had to go to market", "took the potatoes to market", "it had rolled into the ditch"),
    ("spade", "the garden had to be dug", "dug the whole garden", "its handle was split"),
    ("boat", "an aunt across the river was ill", "rowed over to the aunt with soup", "it was half full of water"),
    ("lantern", "a goat had strayed in the dark", "found the goat behind the barn", "its glass was broken"),
    ("net", "there was nothing in the house for supper", "caught five fat fish", "it was torn in three places"),
    ("axe", "there was no wood for the stove", "chopped wood for a week", "its blade was full of notches"),
    ("rope", "the calf had fallen into a pit", "pulled the calf out of the pit", "the mice had chewed it"),
    ("wheelbarrow", "the wall had to be mended", "carried stones and mended the wall", "its wheel had come off"),
]

SKILLS = {  # animal: what it can do
    "fox": "run", "hare": "run", "horse": "run", "dog": "run", "mouse": "gnaw", "rat": "gnaw", "squirrel": "climb",
    "cat": "climb", "goat": "climb", "crow": "fly", "owl": "fly", "magpie": "fly", "pigeon": "fly", "otter": "swim",
    "frog": "swim", "duck": "swim", "badger": "dig", "mole": "dig", "bear": "pull", "donkey": "pull",
    "tortoise": "plod", "hedgehog": "plod", "snail": "plod",
}  # fmt: skip

FOOD = {  # what an animal likes to be given
    "fox": "a piece of cheese", "dog": "a big bone", "mouse": "a handful of grain", "rat": "a crust of bread",
    "cat": "a dish of cream", "goat": "a bunch of carrots", "crow": "a boiled egg", "owl": "a slice of ham",
    "magpie": "a ripe plum", "pigeon": "a handful of peas", "otter": "a silver fish", "frog": "a fat fly",
    "duck": "a bowl of oats", "badger": "a spoonful of honey", "mole": "a long worm", "squirrel": "a bag of nuts",
    "hare": "a fresh lettuce", "horse": "two red apples",
}  # fmt: skip

TREASURES = ["ring", "silver button", "little key", "tin whistle", "brass coin", "bone comb", "thimble", "glass bead"]

HIDING = [  # where a lost thing lies, the skill that reaches it, how it comes back
    ("at the bottom of the mill pond", "swim", "dived where the water was darkest and came up with the {thing}"),
    ("in a nest at the top of the tall elm", "fly", "flew up to the nest and dropped the {thing} into {a.his} hand"),
    ("on the ledge above the barn door", "climb", "climbed from beam to beam and pushed the {thing} off the ledge"),
    ("deep in a hole under the roots of the oak", "dig", "dug until the earth flew and rolled out the {thing}"),
    ("inside a tightly knotted sack", "gnaw", "gnawed a hole in the sack and carried out the {thing}"),
]

HAZARDS = [  # seasons, wish, warning, what happens to those who do not listen, how {b} helps, and to those who do
    ("winter", "to slide on the pond", "the ice is thin in the middle",
     "the ice cracked, and {a} sank into the black water up to the chest",
     "pushed a long branch over the ice and pulled {a.him} out",
     "{a} slid down the hill on a tray instead. Before noon the ice broke with a noise like thunder"),
    ("spring summer autumn", "to go home over the old bridge", "two of its planks are rotten",
     "a plank broke, and {a} hung over the river by the arms",
     "laid a ladder across the gap and helped {a.him} back",
     "{a} took the long way by the ford. That evening a plank fell into the river with nobody on it"),
    ("summer", "to take honey from the hollow tree", "the bees are at home and do not like thieves",
     "the bees came out in a cloud and stung {a.him} on the nose, the ears and both hands",
     "led {a.him} to the stream and laid cold mud on the stings",
     "{a} asked the beekeeper, who was glad of company and cut off a whole comb as a present"),
    ("autumn", "to cook the red mushrooms by the path", "the red ones make people ill",
     "{a} lay awake all night and held {a.his} stomach with both hands",
     "made mint tea and sat beside {a.him} until morning",
     "{a} picked blackberries instead and ate them with cream"),
    ("spring autumn", "to wade across the river", "the water is high after the rain",
     "the current took {a.his} feet away and carried {a.him} down to the willows",
     "threw {a.him} a rope and pulled {a.him} to the bank",
     "{a} waited. After two days the water fell, and {a.he} crossed without wetting {a.his} knees"),
    ("summer", "to wait under the tall oak when a storm came up", "lightning likes tall trees",
     "lightning struck the oak, and a branch came down so close that it tore {a.his} sleeve",
     "took {a.him} by the hand and ran with {a.him} to the barn",
     "they ran to the barn together. From its door they saw lightning split the oak in two"),
]  # fmt: skip

ERRANDS = [  # what is carried, to whom, what happens in time, what happens when it is late
    ("a letter", "the doctor",
     "the doctor came the same night, and the sick child was well again within a week",
     "the doctor had driven away, and the sick child lay in fever for three more days"),
    ("a message that the river was rising", "the ferryman",
     "the ferryman pulled his boat up to the meadow, and the flood took nothing",
     "the boat was already gone, and the ferryman stood in the rain and stared after it"),
    ("an invitation to a wedding", "the fiddler",
     "the fiddler came with his fiddle, and they danced until midnight",
     "the wedding was over, and nobody had danced"),
    ("the key of the mill", "the miller",
     "the miller ground the corn, and in the morning there was bread for everybody",
     "the mill stood still, and the next day there was no bread in the whole village"),
    ("a warning of frost", "the gardener",
     "the gardener covered the young trees with straw, and not one of them was hurt",
     "the frost had come first, and the young trees were black"),
]  # fmt: skip

DELAYS = [
    ("a puppet show was playing at the crossroads", "watched it to the end"),
    ("some children were fishing from the bridge", "stayed to see who would catch the biggest fish"),
    ("a juggler was throwing plates in the market", "waited for one of them to fall"),
    ("a cat had four new kittens by the roadside", "played with each of them in turn"),
    ("two carters were quarrelling over a pig", "listened until they had run out of words"),
]

NOISES = [  # noise, where, animal, what had happened to it, how it is helped
    ("slow scratching", "in the cellar", "hedgehog", "had fallen down the steps", "carried {b.him} up in a bucket"),
    ("rattling", "in the kitchen", "cat", "had a milk jug stuck on {b.his} head", "drew off the jug with butter"),
    ("howling", "behind the barn", "dog", "had a paw caught under a beam", "lifted the beam and bound up the paw"),
    ("thumping", "in the church tower", "owl", "had a wing tangled in the bell rope", "loosened the rope"),
    ("splashing", "down in the well", "duck", "could not spread {b.his} wings to fly out", "let down the bucket"),
    (
        "rumbling",
        "in the attic",
        "rat",
        "was rolling walnuts over the boards",
        "moved {b.him} to the barn, nuts and all",
    ),
    ("groaning", "under the bridge", "donkey", "had strayed from the fair", "led {b.him} home by the halter"),
]

THEFTS = [  # season, what is gone, the trace, the thief, how it is found
    ("summer", "that a pie was gone from the window sill", "a line of crumbs that led to the hedge",
     "badger", "under the hedge lay a fat badger, fast asleep"),
    ("winter", "that six eggs were gone from the hen house", "small footprints in the snow",
     "fox", "at the end of the footprints sat a fox and licked {c.his} lips"),
    ("autumn", "that a piece of cheese was gone from the shelf", "a round hole at the foot of the wall",
     "mouse", "in the hole sat a mouse, as round as a ball"),
    ("autumn", "that a bag of nuts was gone from the attic", "empty shells on the branch outside the window",
     "squirrel", "higher up a squirrel was cracking the last one"),
    ("summer", "that a silver spoon was gone from the garden table", "one black and white feather",
     "magpie", "in the pear tree they found a magpie, the spoon and eleven buttons"),
    ("summer", "that a string of sausages was gone from the smoke house", "a greasy path through the grass",
     "dog", "at the end of the path lay a dog who could not eat another bite"),
    ("winter", "that a bowl of cream was gone from the pantry", "white paw prints on the stairs",
     "cat", "on the best bed a cat was washing {c.his} whiskers"),
    ("spring", "that a pot of honey was gone from the bench by the hives", "deep scratches on the bench",
     "bear", "behind the hives sat a bear with one paw in the pot"),
]  # fmt: skip

CLAIMS = [  # thing, the test, what the false owner does, what the true owner does
    ("goat", "set the goat down halfway between the two houses", "held out a carrot.", "only clicked {b.his} tongue.",
     "The goat trotted to {b} without a look at the carrot"),
    ("purse", "asked how many coins were in it", 'said, "Ten or twelve."', 'said, "Seven, and one of them is bent."',
     "There were seven, and one was bent"),
    ("cloak", "asked what was sewn into the lining", 'said, "Nothing."', 'said, "A blue patch, under the left arm."',
     "The patch was there"),
    ("dog", "told each of them to call it", "shouted as loudly as {a.he} could.", "spoke its name softly.",
     "The dog ran to {b} and licked {b.his} hand"),
    ("cart", "asked which of its wheels squeaked", 'said, "All four."', 'said, "None. I oiled them."',
     "They pushed the cart across the yard, and it made no sound"),
    ("knife", "hid it and asked what was cut into the handle", 'said, "A star."', 'said, "An H, for Henry."',
     "The letter was an H"),
]  # fmt: skip

SECRETS = [  # what is told in trust, what happens when it gets about, what happens when it does not
    ("where a swan had built her nest", "Boys came with sticks, and the swan left the pond for ever",
     "In May four grey chicks swam behind the swan, and only the two friends knew where they had come from"),
    ("where the sweetest strawberries grew", "The next day half the village came, and not one berry was left",
     "Every Sunday they went there together and came home with red fingers"),
    ("that the neighbours were building a boat for the old ferryman",
     "The ferryman heard of it too, and there was no surprise left to give him",
     "On his birthday the ferryman saw the boat, and he had to sit down for joy"),
    ("that {b.he} had never learned to read", "People laughed in the street, and {b} stayed at home for days",
     "All winter the two sat over one book, and in spring {b} read the newspaper aloud"),
    ("where a hare had hidden her young", "Somebody came with a dog, and in the evening the grass was empty",
     "The young hares grew up, and sometimes they played in the meadow at dusk"),
]  # fmt: skip

TRAVELLERS = [  # who, how he or she repays a supper, what the other one then lacks
    ("an old carpenter", "mended the roof before breakfast", "the first storm tore a hole in {a}'s roof"),
    ("a fiddler", "played at the window until the whole street danced", "no fiddler could be found for {a}'s feast"),
    (
        "a gardener",
        "cut back the old pear tree so well that it bent under its fruit the next year",
        "{a}'s trees bore no fruit",
    ),
    ("a well digger", "showed where to dig for water", "{a}'s well ran dry that summer"),
    ("a doctor", "cured the youngest child of a cough", "{a} coughed until Easter"),
    ("a clockmaker", "made the old clock run again", "{a}'s clock stopped, and {a.he} came late to everything"),
]

SEEDS = ["beans", "peas", "pumpkins", "carrots", "onions", "cabbages", "melons"]

DEBTS = [  # small animal, trouble of the big one, rescue
    ("mouse", "was caught in a hunter's net", "gnawed through the cords, one by one"),
    ("mole", "was locked in a farmer's shed", "dug a passage under the wall, wide enough for a big guest"),
    ("crow", "had a thorn deep in one foot", "pulled it out with a strong beak and a short tug"),
    ("frog", "was lost on the marsh at night", "called from stone to stone until there was firm ground"),
    ("squirrel", "was tied to a pine with a thick rope", "bit the rope in two"),
    ("pigeon", "could not find the way home through the smoke of a fire", "flew ahead, from clearing to clearing"),
]

LESSONS = [  # art, how it goes at first, what comes of it
    ("to play the fiddle", "it sounded like a cat in a sack", "the whole village danced to it at the harvest feast"),
    ("to bake bread", "the loaf was as hard as a brick", "people came from three villages for a loaf"),
    ("to swim", "half the pond went down the wrong way", "the ferry sank, and three people were pulled ashore"),
    ("to read", "the letters ran about like ants", "a letter came from the king, and one person could read it aloud"),
    ("to whistle like a blackbird", "nothing came out but air", "one morning a blackbird answered"),
    ("to make shoes", "both shoes were left shoes", "a bride danced all night in those shoes"),
    ("to carve wood", "the horse looked like a potato", "a carved horse stood in the window of the big shop"),
]

GOALS = ["the old oak", "the church door", "the bridge", "the top of the hill", "the mill", "the crossroads"]

"""What a method is: from rewarded trees to an advantage and a weight for each token, and the loss that these enter.

`advantage` (pools, baselines, scales) · `weights` (how tokens, nodes and answers are averaged, and the anchor) ·
`credit` (what the two say of a tree; nothing after it knows a method's name) · `objective` (ratio, clip, KL,
correction) · `variance` (how noisy thoughts' advantages are) · `presets` (the methods, as settings).
"""

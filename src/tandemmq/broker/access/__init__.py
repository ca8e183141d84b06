"""Access control: the rules of plain_acl.yml (4.x), users and policies (5.x), and the log of denials.

Source: spec semantics 21, spec remoting 7; spec decisions 5 (a denial wins over a permission).
"""

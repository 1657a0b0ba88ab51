.thing |

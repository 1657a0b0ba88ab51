package clause

import promethean/event

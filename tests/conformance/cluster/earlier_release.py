"""`headwater` as an earlier release: it knows the first level of transactions alone, and starts clusters with that.

    python earlier_release.py broker --config FILE

The levels are replaced before any other module takes them.
"""

from __future__ import annotations

import sys

from headwater.logtier.protocol import features

_EARLIER = {features.TRANSACTION_VERSION: features.FeatureRange(1, 1)}
_SUPPORTED = {**features.SUPPORTED_FEATURES, **_EARLIER}
_FIRST = {name: each.last for name, each in {**features.EARLIER_RELEASES, **_EARLIER}.items()}

if __name__ == "__main__":
    vars(features).update(SUPPORTED_FEATURES=_SUPPORTED, FIRST_FEATURES=features.FinalizedFeatures(0, _FIRST))
    from headwater.cli.main import main

    sys.exit(main())

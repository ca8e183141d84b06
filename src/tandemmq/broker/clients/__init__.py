"""Connected clients: their groups, subscriptions and queue locks."""

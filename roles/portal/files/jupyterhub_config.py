# SPDX-License-Identifier: GPL-3.0-or-later
"""The hub's configuration. It is the same on every site: settings are in the file that the package reads."""

from baremetal_gpu_portal import handlers, logins, pages, people, sweeper, tls
from baremetal_gpu_portal.portal import Portal
from baremetal_gpu_portal.spawner import SessionSpawner

# JupyterHub puts it there.
c = get_config()  # noqa: F821
portal = Portal()
hub = portal.hub
c.Spawner.update(portal=portal, default_url="/lab", start_timeout=hub["wait_minutes"] * 60, http_timeout=180)
c.Spawner.poll_interval = 5
c.Authenticator.update(portal=portal, allow_all=True, auth_refresh_age=300, refresh_pre_spawn=True, manage_roles=True)
# A token of a closed account is none.
c.Authenticator.auth_refresh_strict = True
c.Authenticator.update(logins.options(portal))
c.ConfigurableHTTPProxy.update(should_start=False, api_url=hub["proxy_api_url"])
c.JupyterHub.update(spawner_class=SessionSpawner, authenticator_class=logins.CLASSES[portal.login])
c.JupyterHub.update(cleanup_servers=False, cleanup_proxy=False, concurrent_spawn_limit=100)
c.JupyterHub.update(
    bind_url=hub["public_url"], hub_bind_url=hub["hub_bind_url"], hub_connect_url=hub["hub_connect_url"]
)
c.JupyterHub.update(internal_ssl=True, internal_certs_location=portal.certificates)
c.JupyterHub.trusted_alt_names = [tls.name_of(hub[name]) for name in ("hub_connect_url", "public_url")]
c.JupyterHubHTTPClient.connector_options = {"resolver": tls.Resolver()}
tls.believe_the_proxy_alone()
if hub.get("own_origins"):
    # Each user's sessions have an origin of their own, and a cookie of it cannot be set by those of another.
    c.JupyterHub.update(subdomain_host=hub["public_url"], cookie_host_prefix_enabled=True)
c.JupyterHub.db_url = hub.get("db_url") or f"sqlite:///{portal.state}/jupyterhub.sqlite"
c.JupyterHub.update(cookie_secret_file=f"{portal.state}/cookie_secret", token_expires_in_max_seconds=people.TOKEN_S)
c.JupyterHub.update(extra_handlers=handlers.of(portal), template_vars=handlers.template_variables(portal))
c.JupyterHub.template_paths = [str(pages.TEMPLATES)]
c.JupyterHub.tornado_settings = {
    "headers": {"X-Content-Type-Options": "nosniff"},
    "cookie_options": {"samesite": "Lax", "secure": True},
    "xsrf_cookie_kwargs": {"samesite": "Lax", "secure": True},
}
c.JupyterHub.update(allow_named_servers=hub["named_servers"] > 0, named_server_limit_per_user=hub["named_servers"])
# So soon, too, a proxy that was started again knows the sessions.
c.JupyterHub.last_activity_interval = 20
sweeper.start(portal)

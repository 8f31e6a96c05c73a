// SPDX-License-Identifier: GPL-2.0
/*
 * C functions for what the network's headers offer only as a macro or an inline function: net
 * devices and their namespaces. What each is for, and when it may be called, is said in
 * rust/rdma/base/.
 */
#include <linux/etherdevice.h>
#include <linux/rtnetlink.h>
#include <net/net_namespace.h>
#include "helpers.h"

/* Network namespaces. */

/* The network namespace with that cookie, held; the initial one if it is gone. */
struct net *base_helper_netns_get(u64 cookie)
{
	struct net *net, *found = NULL;

	down_read(&net_rwsem);
	for_each_net(net)
		if (net->net_cookie == cookie)
			found = maybe_get_net(net);
	up_read(&net_rwsem);
	return found ?: get_net(&init_net);
}

void base_helper_netns_put(struct net *net)
{
	put_net(net);
}

/* Net devices. */

/*
 * Whether @ndev is the net device with that MAC, and not one that borrows it. What is stacked on
 * others (bond, bridge, VLAN, macvlan, failover) takes a lower device's address; a bond's port is
 * given another port's, but keeps its own permanent one. A virtual device counts in the initial
 * network namespace only: the owner of another namespace can make one with any address.
 */
bool base_helper_netdev_has_mac(const struct net_device *ndev, const u8 *mac)
{
	const u8 *own = ndev->perm_addr;

	if (ndev->addr_len != ETH_ALEN || ndev->reg_state != NETREG_REGISTERED ||
	    !list_empty(&ndev->adj_list.lower))
		return false;
	if (!ndev->dev.parent && !net_eq(dev_net(ndev), &init_net))
		return false;
	if (!memchr_inv(own, 0, ETH_ALEN))
		own = ndev->dev_addr;
	return ether_addr_equal_unaligned(own, mac);
}

/*
 * The net device with that MAC, held, in whatever network namespace; a piece of hardware rather
 * than a virtual one. May sleep. One in a namespace that is being taken down is not found: it is
 * on no list until it is in the initial one.
 */
struct net_device *base_helper_netdev_by_mac(const u8 *mac)
{
	struct net_device *ndev, *found = NULL;
	struct net *net;

	rtnl_lock();
	down_read(&net_rwsem);
	for_each_net(net) {
		for_each_netdev(net, ndev) {
			if (!base_helper_netdev_has_mac(ndev, mac))
				continue;
			if (!found || (ndev->dev.parent && !found->dev.parent))
				found = ndev;
		}
	}
	if (found)
		dev_hold(found);
	up_read(&net_rwsem);
	rtnl_unlock();
	return found;
}

/* A net device that moves between network namespaces stays registered, so it is not leaving. */
bool base_helper_netdev_is_leaving(const struct net_device *ndev)
{
	return READ_ONCE(ndev->reg_state) != NETREG_REGISTERED;
}

void base_helper_netdev_put(struct net_device *ndev)
{
	dev_put(ndev);
}

void base_helper_netdev_info(struct net_device *ndev, u8 *mac, u32 *mtu, bool *running, bool *carrier)
{
	ether_addr_copy(mac, ndev->dev_addr);
	*mtu = READ_ONCE(ndev->mtu);
	*running = netif_running(ndev);
	*carrier = netif_carrier_ok(ndev);
}

struct net_device *base_helper_notifier_netdev(void *info)
{
	return netdev_notifier_info_to_dev(info);
}

# One server on an OpenStack cloud (OVH, immers.cloud, ...) that provisions itself from a user-data of cloud-init/render.
#
#   cloud-init/render --hook openstack --release URL --bundle dist/finetuned-VERSION.tar.gz --out user-data
#   tofu -chdir=deploy/opentofu/openstack apply

terraform {
  required_version = ">= 1.6"

  required_providers {
    openstack = {
      source  = "terraform-provider-openstack/openstack"
      version = ">= 2.0"
    }
  }
}

provider "openstack" {
  cloud = var.cloud
}

# A new group lets everything out and nothing in.
resource "openstack_networking_secgroup_v2" "machine" {
  name        = var.name
  description = "SSH in, everything out"
}

resource "openstack_networking_secgroup_rule_v2" "ssh" {
  security_group_id = openstack_networking_secgroup_v2.machine.id
  direction         = "ingress"
  ethertype         = "IPv4"
  protocol          = "tcp"
  port_range_min    = 22
  port_range_max    = 22
  remote_ip_prefix  = var.ssh_from
}

resource "openstack_compute_instance_v2" "machine" {
  name            = var.name
  image_id        = var.image_id
  flavor_name     = var.flavor
  key_pair        = var.key_pair
  security_groups = [openstack_networking_secgroup_v2.machine.name]

  # The file is gzipped MIME, which `file` could not read. The provider sees base64 and sends it as it is.
  user_data = filebase64(var.user_data_file)

  # User-data arrives where the cloud has no metadata service, too.
  config_drive = true

  network {
    uuid = var.network_id
  }

  # A newer image or user-data is for the next machine, never a reason to replace one that trains
  # (tofu apply -replace=openstack_compute_instance_v2.machine); and one that shelved itself is to stay shelved.
  lifecycle {
    ignore_changes = [image_id, user_data, power_state]
  }
}

output "address" {
  description = "Where to log in, from the network's side; a floating IP is yours to attach."
  value       = openstack_compute_instance_v2.machine.access_ip_v4
}
